"""Who owns what: this gateway's leases, the requests that it adopts and gives away, and those that it only
follows."""
