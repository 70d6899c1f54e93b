"""Learning from traffic: collected requests and offered weights."""
