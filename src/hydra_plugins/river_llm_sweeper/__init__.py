"""Hydra finds its plugins below `hydra_plugins`, a namespace that it shares with others."""
