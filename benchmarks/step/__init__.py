"""The ledger of a decoding step: times in process and by services."""
