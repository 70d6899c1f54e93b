"""Drive one verifier: run `specinfer.engine.step`, store and publish its tokens."""
