"""Resolves models: names, directories, GGUF files and hub ids."""

from specinfer.hub.resolve import DEFAULT_MODEL, model_name, resolve_model

__all__ = ["DEFAULT_MODEL", "model_name", "resolve_model"]
