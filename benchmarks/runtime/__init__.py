"""What `make bench` measures, one part per file."""
