"""`Generation.Watch`: sends steps to clients that watch. Costs one check for each step while none does."""
