"""Coordinate gateways: leases of verifiers, adoption and rebalancing of requests."""
