"""Evaluation: task x decoder to records."""
