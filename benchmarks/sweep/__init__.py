"""`python -m benchmarks.sweep`: guidellm against our server and vLLM's, on the same prompts."""
