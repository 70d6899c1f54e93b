"""Which process a verifier is, and what decides the text that it generates."""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from specinfer.model.weights.fingerprint import weights_fingerprint
from specinfer.tokenizer import Tokenizer
from verifier_svc.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Identity:
    """What `Describe` tells so that a change is noticed."""

    instance_id: str
    """Of this process."""
    model_fingerprint: str
    """Of weights, numeric type, how they are held, windowed cache, tokenizer and chat template."""
    text_fingerprint: str
    """Of what turns text into tokens."""
    tokenizer_fingerprint: str
    """Of the vocabulary: it decides about speculators."""

    @classmethod
    def of(cls, settings: VerifierSettings, directory: Path, tokenizer: Tokenizer) -> "Identity":
        """That of a verifier that serves the model of a directory, with its tokenizer, under these settings.

        Raises:
            SettingError: if the directory lacks a configuration or weights.
        """
        text = tokenizer.text_fingerprint()
        return cls(secrets.token_hex(8), _model(settings, directory, text), text, tokenizer.fingerprint())


def _model(settings: VerifierSettings, directory: Path, text: str) -> str:
    """Sinks only matter to a windowed cache."""
    window = (settings.kv_window,) if settings.kv_window else ()
    parts = (
        weights_fingerprint(directory, settings.weights),
        settings.dtype,
        settings.weights,
        *window,
        text,
    )
    return sha256(repr(parts).encode()).hexdigest()[:16]
