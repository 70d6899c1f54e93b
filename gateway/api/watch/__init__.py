"""`Generation.Watch`: sends steps to watching clients. Without any it is nearly free."""
