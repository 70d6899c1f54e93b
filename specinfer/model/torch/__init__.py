"""The decoder in torch operations: layers and attention."""
