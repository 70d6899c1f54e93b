"""Serve OpenAI's `/v1/responses`, whose answers are lists of items; nothing is stored."""
