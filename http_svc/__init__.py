"""OpenAI-compatible HTTP in front of gateways.

It is stateless, so any number may run, and has no tokenizer.
"""
