"""Gateways among each other: leases of verifiers, adoption and rebalancing of requests."""
