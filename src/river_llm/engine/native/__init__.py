"""Narrow passes (a few tokens) in C++, compiled on the machine they run on."""
