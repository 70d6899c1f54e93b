"""Synthetic acceptance: how many drafted tokens are accepted is drawn from a measured histogram.

For speed on shapes whose weights cannot be had: a random model agrees with nobody, so its trees would always
be rejected. What it answers is text of nobody. Only processes that a benchmark starts do this
(`benchmarks.synthetic.verifier`); the services do not offer it, and every output says so.
"""
