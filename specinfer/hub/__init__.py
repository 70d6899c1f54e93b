"""Find and fetch models: registry names, hub ids, directories, GGUF files."""

from specinfer.hub.resolve import DEFAULT_MODEL, model_name, resolve_model

__all__ = ["DEFAULT_MODEL", "model_name", "resolve_model"]
