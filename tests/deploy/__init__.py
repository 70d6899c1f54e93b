"""Test what is deployed with the programs that read it."""
