"""One verifier's requests: the loop of `specinfer.engine.step`, with durable tokens."""
