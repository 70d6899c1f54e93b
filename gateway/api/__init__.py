"""The gRPC service of a gateway: requests in, streams, status and pictures of steps out."""
