"""The processors of this machine: their kind, and how many of them this process may use."""
