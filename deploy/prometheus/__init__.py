"""Scrape configuration and rules; the YAML files are what Prometheus reads."""
