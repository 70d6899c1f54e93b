"""Find and fetch models: registry names, hub ids, directories, GGUF files."""

from specinfer.hub.resolve import model_name, resolve_model
from specinfer.options.model_options import DEFAULT_MODEL

__all__ = ["DEFAULT_MODEL", "model_name", "resolve_model"]
