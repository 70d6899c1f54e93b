"""Tools for OpenAI-compatible servers: calls, and a check of exactness."""
