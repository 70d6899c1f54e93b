"""Run a whole system on this machine: processes, Redis, ports."""
