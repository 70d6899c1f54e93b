"""Render conversations by chat templates, with or without support for tools."""
