"""Tools for servers of OpenAI's API, ours and others: batches, and a check that speculation changes no answer."""
