"""Executors: how layers are run."""
