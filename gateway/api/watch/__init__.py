"""`Generation.Watch`: tells whoever looks what steps do. Costs one check for each step while nobody does."""
