"""Tools for OpenAI-compatible servers: batches, and a check of exactness."""
