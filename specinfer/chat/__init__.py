"""Conversations: chat templates, and descriptions of tools for templates without them."""
