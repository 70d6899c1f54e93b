"""Learning from traffic: what a speculator service keeps of requests, and how it takes better weights."""
