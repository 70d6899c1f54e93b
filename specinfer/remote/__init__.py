"""Clients of speculator services: parts shared by the gateway and integrations into other engines."""
