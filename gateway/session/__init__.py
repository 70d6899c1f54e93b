"""Drives one verifier: the loop of `specinfer.engine.step`, with stored tokens."""
