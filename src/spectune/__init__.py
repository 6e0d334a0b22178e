"""spectune: find the fastest speculative decoding configuration of a real server, and say why."""

__version__ = "0.1.0"
