"""One verifier's requests: the loop that drives `specinfer.step` over gRPC, and makes tokens durable."""
