"""Values of protobuf fields that often break code, by the field's type."""

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F

_NAN, _INF = float("nan"), float("inf")
_UINT32 = (0, 1, 2, 15, 16, 17, 96, 97, 98, 127, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_INT32 = (0, 1, -1, 2, -2, 16, 97, 2**16, 2**31 - 1, -(2**31), -(2**31) + 1)
_UINT64 = (*_UINT32, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_INT64 = (*_INT32, 2**32, -(2**32), 2**63 - 1, -(2**63))
_DOUBLE = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-3,
    5e-324,
    1e-310,
    1.0 + 2**-52,
    1e30,
    -1e308,
    1e308,
    _NAN,
    _INF,
    -_INF,
)
_FLOAT = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.0000001,
    0.9999999,
    1e-45,
    1e-39,
    -1e-45,
    3e38,
    -3e38,
    _NAN,
    _INF,
    -_INF,
)
_STRINGS = (
    *("", " ", "\0", "a\0b", "a", "abc" * 90, "\n\r\t", "%s%n{}", "../../x", "\U0001f600", "e\u0301\u0301"),
    *("\u202eabc", "\ufeff", "\ufffd", "\ufffe", "\u2028", "İ", "ß" * 40, "用户", "'; DROP", "{{ 7 * 7 }}"),
)
_BYTES = (b"", b"\0", b"\xff" * 9, b"abc" * 100)

_NUMBERS: dict[int, tuple[Any, ...]] = {
    F.TYPE_UINT32: _UINT32,
    F.TYPE_INT32: _INT32,
    F.TYPE_UINT64: _UINT64,
    F.TYPE_INT64: _INT64,
    F.TYPE_FLOAT: _FLOAT,
    F.TYPE_DOUBLE: _DOUBLE,
    F.TYPE_BOOL: (False, True),
    F.TYPE_ENUM: (0, 1, 2, 3, 4, 5, 99, -1, 2**31 - 1, -(2**31)),
    F.TYPE_STRING: _STRINGS,
    F.TYPE_BYTES: _BYTES,
}
_BOUNDS = {
    F.TYPE_UINT32: (0, 2**32 - 1),
    F.TYPE_INT32: (-(2**31), 2**31 - 1),
    F.TYPE_UINT64: (0, 2**64 - 1),
    F.TYPE_INT64: (-(2**63), 2**63 - 1),
}


def boundary_value(field: F, rng: Random) -> Any:
    """Return a boundary value of the field's type."""
    return rng.choice(_NUMBERS[field.type])


def near_value(field: F, value: Any, rng: Random) -> Any:
    """Return a value close to a valid one, such as off by one or a text repeated."""
    if field.type in _BOUNDS:
        low, high = _BOUNDS[field.type]
        moved = rng.choice((value + 1, value - 1, value * 2, -value, value ^ (1 << rng.randrange(31))))
        return min(max(moved, low), high)
    if field.type in (F.TYPE_FLOAT, F.TYPE_DOUBLE):
        return value * rng.choice((-1.0, 0.0, 0.999, 1.001, 2.0, 1e-20))
    if field.type in (F.TYPE_STRING, F.TYPE_BYTES):
        cut = rng.randrange(len(value) + 1)
        return rng.choice((value[:cut], value + value, value[cut:] + value[:cut]))
    return boundary_value(field, rng)
