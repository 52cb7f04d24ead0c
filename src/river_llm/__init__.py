"""River-LLM: seamless early exit for decoder-only LLMs through a shared KV cache."""

__version__ = "0.1.0"
