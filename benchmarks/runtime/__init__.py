"""Parts of `make bench`, one per file."""
