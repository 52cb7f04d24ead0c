"""Quantization: 4-bit grids, quantizers, kernels, and the river built from a backbone."""
