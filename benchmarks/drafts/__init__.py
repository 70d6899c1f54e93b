"""What `make bench-acceptance` measures, one part per file."""
