"""Suggest options for mistyped names and for names of other systems."""

from collections.abc import Collection
from difflib import get_close_matches

_ELSEWHERE = {
    "draft": "speculator speculators md model-draft spec-draft-model draft-model assistant-model speculative-model "
    "speculative-config",
    "model": "m model-path",
    "device": "n-gpu-layers gpu-layers ngl",
    "threads": "t n-threads threads-batch tb",
    "kv-type": "ctk ctv cache-type-k cache-type-v kv-cache-dtype type-k",
    "max-context-len": "c ctx-size n-ctx max-model-len",
    "max-model-len": "c ctx-size n-ctx max-context-len",
    "max-batch": "np parallel max-num-seqs",
    "max-num-seqs": "np parallel max-batch",
    "kv-tokens": "gpu-memory-utilization num-gpu-blocks cache-tokens",
    "weights": "quantization q",
    "listen": "host port",
    "http-listen": "host port",
    "served-model-name": "alias a",
    "max-new-tokens": "max-tokens n n-predict",
    "max-tokens": "max-new-tokens n n-predict",
    "temperature": "temp",
    "tensor-parallel": "tensor-parallel-size tp",
    "prefix-cache-directory": "slot-save-path cache-ram",
}
"""Names in llama.cpp, vLLM and Transformers, by SpecInfer's option."""


def meant(name: str, known: Collection[str]) -> str | None:
    """Return the known option similar to a name; None without one.

    Leading dashes are ignored; dashes equal underscores.
    """
    plain, options = _plain(name), {_plain(other): other for other in known}
    for option, names in _ELSEWHERE.items():
        if option in options and plain in names.split():
            return options[option]
    begins = [
        other for other in options if len(plain) > 2 and (other.startswith(plain) or plain.startswith(other))
    ]
    close = begins or get_close_matches(plain, options, n=1, cutoff=0.55)
    return options[close[0]] if close else None


def no_such_option(name: str, known: Collection[str]) -> str:
    """Return the reason of an error about an unknown option."""
    close = meant(name, known)
    return f"no such option, did you mean {close}?" if close else "no such option; see --help"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()
