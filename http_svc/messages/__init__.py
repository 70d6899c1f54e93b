"""Serve Anthropic's `/v1/messages`, whose answers are lists of blocks; nothing is stored."""
