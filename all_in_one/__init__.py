"""Everything on one machine in one process: HTTP service, gateway and verifier, without gRPC and without Redis."""
