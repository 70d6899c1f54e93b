"""Agents' conversations with `serve` for some minutes: `python -m tests.soak --minutes 60 --model FILE.gguf`."""
