"""Third-party clients and load tools against our HTTP service, each in its own environment."""
