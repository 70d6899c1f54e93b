"""The ledger of a decoding step: where its time goes, in one process and through the services."""
