"""Mirrors records to Weights & Biases after a run has ended; what is on disk is the truth."""
