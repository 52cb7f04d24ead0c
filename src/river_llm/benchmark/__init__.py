"""Time per token of every method and of other programs, beside what the memory would allow."""
