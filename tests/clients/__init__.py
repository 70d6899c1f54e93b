"""Other people's clients and load tools on our HTTP service, each in an environment of its own."""
