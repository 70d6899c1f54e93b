"""Runs decoders in passes that append context and score token trees.

The package uses torch. It must not import gRPC, protobuf or the services.
"""
