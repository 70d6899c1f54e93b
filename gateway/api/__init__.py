"""The gateway's gRPC service: requests, token streams, status and watches."""
