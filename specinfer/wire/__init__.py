"""Convert objects to protobuf messages, and errors to gRPC status codes."""
