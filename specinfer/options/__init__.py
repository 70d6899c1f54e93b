"""Names of options, and errors about them."""
