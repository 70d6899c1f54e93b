"""A decoder that appends context and scores token trees in one pass.

It runs Llama, OPT, GPT-NeoX and their relatives. Knows torch; must not know gRPC, protobuf or its callers.
"""
