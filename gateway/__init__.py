"""The gateway: stores committed tokens, merges drafts and calls the verifier."""
