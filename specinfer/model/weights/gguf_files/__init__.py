"""Names, parts and metadata of GGUF files.

Their tensors: `GgufWeights` in `specinfer.model.weights.files`.
"""
