"""Learn from traffic: collect requests, judge offered weights."""
