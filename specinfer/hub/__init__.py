"""Sources of models: a name, a directory, a GGUF file or a hub id becomes a model directory."""

from specinfer.hub.resolve import DEFAULT_MODEL, model_name, resolve_model

__all__ = ["DEFAULT_MODEL", "model_name", "resolve_model"]
