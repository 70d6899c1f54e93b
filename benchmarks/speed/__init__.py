"""Speed of whole systems, plain and with trees: what speculation gains."""
