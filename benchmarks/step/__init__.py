"""Measure a step's parts ("ledger"), in process and with services."""
