"""A tokenizer's text fingerprint depends only on settings that change the tokens of a text."""

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers

from specinfer.text.tokenizer import Tokenizer

VOCABULARY = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}


def made(
    merges: tuple[tuple[str, str], ...] = (("a", "b"), ("b", "c")),
    template: str | None = "{{ messages }}",
    lowercase: bool = False,
    bos: str = "a",
    vocabulary: dict[str, int] = VOCABULARY,
) -> Tokenizer:
    fast = FastTokenizer(models.BPE(vocabulary, list(merges)))
    fast.decoder = decoders.Fuse()
    if lowercase:
        fast.normalizer = normalizers.Lowercase()
    return Tokenizer(fast, template, {"bos_token": bos})


def test_equal_tokenizers_have_equal_fingerprints() -> None:
    shuffled = dict(reversed(VOCABULARY.items()))
    assert made(vocabulary=shuffled).text_fingerprint() == made().text_fingerprint()


def test_settings_that_change_tokens_change_it_but_not_the_vocabulary_fingerprint() -> None:
    others = [
        made(merges=(("b", "c"), ("a", "b"))),
        made(template="{{ messages }}!"),
        made(template=None),
        made(lowercase=True),
        made(bos="b"),
    ]
    assert len({tokenizer.text_fingerprint() for tokenizer in [made(), *others]}) == 6
    assert {tokenizer.fingerprint() for tokenizer in others} == {made().fingerprint()}
    assert made().encode("abc") != others[0].encode("abc")
