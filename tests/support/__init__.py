"""Servers, models, drafters and oracles that tests share."""
