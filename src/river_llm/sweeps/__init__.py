"""Sweeps: many cells by one command, planned on disk, launched by Hydra, resumed cell by cell."""
