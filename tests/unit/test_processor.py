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
    found = {"model name": "Chip 7", "flags": flags}
    monkeypatch.setattr(processor, "_field", lambda name: found.get(name, ""))
    monkeypatch.setattr(processor, "processor_flags", lambda: frozenset(flags.split()))
    assert processor.processor_name() == words


def test_generations_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"model name": "Chip", "cpu family": "25", "model": "17"}
    monkeypatch.setattr(processor, "_field", lambda name: found.get(name, ""))
    monkeypatch.setattr(processor, "processor_flags", frozenset)
    assert processor.processor_name() == "Chip (family 25, model 17)"
