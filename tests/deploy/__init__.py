"""What is deployed, tested with the programs that read it."""
