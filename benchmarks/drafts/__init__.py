"""Parts of `make bench-acceptance`, one per file."""
