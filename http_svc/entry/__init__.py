"""The way of a call before a handler sees it: its connection, its bounds, its key."""
