"""Bodies of callers: fields, their types and bounds."""
