"""OpenAI-compatible HTTP in front of gateways.

The service keeps no state, so any number of processes may run. It loads no tokenizer.
"""
