"""Identifies a verifier's process, model and tokenizer."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specinfer.model.weights.fingerprint import model_fingerprint
from specinfer.text.tokenizer import Tokenizer
from verifier_svc.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Identity:
    """Fields of `Describe` that change with the process or the model."""

    instance_id: str
    """Random id of this process."""
    model_fingerprint: str
    """Fingerprint of weights, their formats, cache, tokenizer and chat template."""
    text_fingerprint: str
    """Fingerprint of tokenizer and chat template."""
    tokenizer_fingerprint: str
    """Fingerprint of the vocabulary, which a speculator must share."""

    @classmethod
    def of(
        cls, settings: VerifierSettings, directory: Path, tokenizer: Tokenizer, blocks: Sequence[str] = ()
    ) -> "Identity":
        """Return the identity of a directory's model under these settings.

        Args:
            blocks: GGUF types of the quantised matrices.
        """
        text = tokenizer.text_fingerprint()
        model = model_fingerprint(
            directory, text, settings.dtype, blocks, settings.kv_type, settings.kv_window
        )
        return cls(secrets.token_hex(8), model, text, tokenizer.fingerprint())
