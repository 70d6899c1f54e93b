"""What everybody needs who asks speculator services: the gateway, and integrations into other engines."""
