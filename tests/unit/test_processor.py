"""The processor's name in reports."""

from collections.abc import Iterator

import pytest

from specinfer.system import machine


@pytest.fixture(autouse=True)
def fresh_flags() -> Iterator[None]:
    machine.processor_flags.cache_clear()
    yield
    machine.processor_flags.cache_clear()


def named(monkeypatch: pytest.MonkeyPatch, **fields: str) -> str:
    """Return the name of a processor with these fields."""
    named_fields = {name.replace("_", " "): value for name, value in fields.items()}
    monkeypatch.setattr(machine, "_field", lambda name: named_fields.get(name, ""))
    return machine.processor_name()


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
    assert named(monkeypatch, model_name="Chip 7", flags=flags) == words


def test_generations_of_one_name_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    name = named(monkeypatch, model_name="Chip", cpu_family="25", model="17")
    assert name == "Chip (family 25, model 17)"
