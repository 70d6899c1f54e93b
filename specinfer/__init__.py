"""SpecInfer: lossless speculative inference with merged token trees (ASPLOS 2024)."""

__version__ = "0.1.0"
