"""Names, parts and metadata of GGUF files.

Their tensors: `specinfer.model.weights.gguf_weights`.
"""
