"""A tokenizer with a token for every byte, usable with constraints."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """Return a tokenizer: ids 0 to 255 are bytes, special tokens follow."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({sign: token for token, sign in enumerate(signs)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(list(special))
    return fast
