"""Request bodies: fields, their types and bounds."""
