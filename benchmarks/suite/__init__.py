"""`python -m benchmarks.suite`: every drafting method alone and merged, beside peers, under equal conditions."""
