"""Quality of the formats of weights."""
