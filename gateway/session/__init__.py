"""One verifier's requests: the loop that drives `specinfer.engine.step` over gRPC, and makes tokens durable."""
