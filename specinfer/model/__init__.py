"""Runs decoders in passes that append context and score token trees.

It runs Llama, OPT, GPT-NeoX and their relatives. Knows torch; must not know gRPC, protobuf or its callers.
"""
