"""Measure the parts of a decoding step, in process and with services."""
