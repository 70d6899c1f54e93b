"""Conversions between domain objects and protobuf messages, and between our errors and gRPC status codes."""
