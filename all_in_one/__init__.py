"""HTTP service, gateway and verifier in one process, without gRPC or Redis."""
