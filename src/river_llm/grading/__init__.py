"""Graders: text (and, for HumanEval, programs) in, verdicts out. No model, no torch."""
