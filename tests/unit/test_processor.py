"""What a report says of the processor."""

import pytest

from specinfer import processor


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("sse2 avx2 avx512bw avx512_bf16", "Chip 7 with AVX-512 and bfloat16"),
        ("sse2 avx2 avx512bw", "Chip 7 with AVX-512"),
        ("sse2 avx2", "Chip 7 with AVX2"),
        ("sse2", "Chip 7"),
    ],
)
def test_the_widest_vectors_are_named(monkeypatch: pytest.MonkeyPatch, flags: str, words: str) -> None:
    monkeypatch.setattr(processor, "_field", {"model name": "Chip 7", "flags": flags}.__getitem__)
    processor.processor_flags.cache_clear()
    assert processor.processor_name() == words
    processor.processor_flags.cache_clear()
