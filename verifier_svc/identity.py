"""Identity of a verifier's process, model and tokenizer."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specinfer.model.weights.fingerprint import model_fingerprint
from specinfer.tokenizer import Tokenizer
from verifier_svc.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Identity:
    """Parts of `Describe` that differ after a change of process or model."""

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
            blocks: block formats of the weights, if the format is the file's.

        Raises:
            SettingError: if the directory lacks a configuration or weights.
        """
        text = tokenizer.text_fingerprint()
        model = model_fingerprint(
            directory, text, settings.dtype, blocks, settings.kv_type, settings.kv_window
        )
        return cls(secrets.token_hex(8), model, text, tokenizer.fingerprint())
