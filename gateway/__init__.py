"""The gateway: it stores committed tokens, merges drafts and calls the verifier."""
