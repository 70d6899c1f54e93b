"""A lean decoder (Llama, OPT, GPT-NeoX) that appends context and scores token trees in one pass.

Knows torch; must not know gRPC, protobuf or its callers.
"""
