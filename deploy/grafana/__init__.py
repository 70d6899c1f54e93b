"""Grafana's dashboards, written in Python; `python -m deploy.grafana.build` writes the JSON."""
