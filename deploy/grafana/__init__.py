"""Grafana's dashboards; `python -m deploy.grafana.build` writes their JSON."""
