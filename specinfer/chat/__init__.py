"""Conversations as text: chat templates, and tools in words for templates that know none."""
