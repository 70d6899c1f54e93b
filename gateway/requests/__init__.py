"""Requests: what was asked, what runs next, what is stored and sent. Pure but for the store."""
