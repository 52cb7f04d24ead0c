"""Models: loading, and the adapter that drives their layers."""
