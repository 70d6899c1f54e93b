"""Agents' conversations with `serve`, for as long as wanted: `python -m tests.soak --minutes 60 --model FILE.gguf`."""
