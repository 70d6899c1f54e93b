"""OpenAI-compatible HTTP in front of gateways. Stateless, so there may be any number; knows no tokenizer."""
