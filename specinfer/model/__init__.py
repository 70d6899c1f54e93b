"""A lean decoder for the Llama family that appends context and scores token trees in one pass.

Knows torch; must not know gRPC, protobuf or who is asking.
"""
