"""Structures and constants that C++ and Python share are compared when the library is loaded."""

import ctypes

import pytest

from specinfer.model.native import bindings
from specinfer.model.native.bindings import bind
from specinfer.model.native.build import load_library

pytestmark = pytest.mark.native


@pytest.fixture
def library() -> ctypes.CDLL:
    """Return the loaded library; binding it again changes nothing."""
    return load_library()


LAST = bindings.Shape._fields_[-1][0]
AT = getattr(bindings.Shape, LAST).offset


def swapped(structure: type[ctypes.Structure], first: str, second: str) -> list[tuple[str, type]]:
    """Return the fields of a structure with two names exchanged."""
    names = {first: second, second: first}
    return [(names.get(name, name), kind) for name, kind in structure._fields_]  # type: ignore[misc]


def test_both_sides_agree(library: ctypes.CDLL) -> None:
    assert bind(library) is library
    assert len(dict(bindings._layout())) > 90


@pytest.mark.parametrize(
    ("name", "changed", "mention"),
    [
        ("Pass", swapped(bindings.Pass, "first_layer", "end_layer"), "Pass.end_layer: 176 in Python, 180"),
        ("Shape", bindings.Shape._fields_[:-1], f"Shape.{LAST}: None in Python, {AT} in C"),
        (
            "GrowthJob",
            [*bindings.GrowthJob._fields_, ("more", ctypes.c_double)],
            "GrowthJob.more: 72 in Python, None",
        ),
    ],
)
def test_a_structure_that_differs_is_named(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str, changed: list[object], mention: str
) -> None:
    """Two exchanged fields of one type, a missing field, and a new field."""
    monkeypatch.setattr(bindings, name, type(name, (ctypes.Structure,), {"_fields_": changed}))
    with pytest.raises(AssertionError, match=mention):
        bind(library)


def test_a_value_that_differs_is_named(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "BLOCK", 32)
    with pytest.raises(AssertionError, match=r"differ: BLOCK: 32 in Python, 16 in C\+\+$"):
        bind(library)
