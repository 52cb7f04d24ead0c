"""Quantization: grids of 4 and 8 bits, quantizers, kernels, and the river built from a backbone."""
