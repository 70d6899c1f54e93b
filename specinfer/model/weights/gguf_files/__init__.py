"""Reads GGUF files: names, parts, metadata and vocabulary.

`specinfer.model.weights.gguf_weights` reads their tensors.
"""
