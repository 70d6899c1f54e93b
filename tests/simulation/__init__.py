"""The real gateways, stores, services and clients in seeded worlds with virtual time (`make simulate`)."""
