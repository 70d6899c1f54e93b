"""The speculator service: guesses token trees."""
