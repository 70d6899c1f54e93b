"""The services as the gateway sees them: messages and connections."""
