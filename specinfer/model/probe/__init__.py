"""Support decided by result: passes of ours beside the forward of `transformers`, before a model is served."""
