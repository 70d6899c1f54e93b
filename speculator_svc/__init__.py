"""The speculator service: drafts token trees."""
