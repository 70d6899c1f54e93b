"""Converts domain objects to protobuf messages, and errors to gRPC status codes."""
