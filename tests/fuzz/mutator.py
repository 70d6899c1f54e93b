"""Mutate protobuf messages by their descriptors, reproducibly from a random generator.

Most mutations change the parsed message: values, repeated fields, parts of earlier messages. The others change
the serialised form.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.message import DecodeError, Message

M = TypeVar("M", bound=Message)

_SERIALISED_SHARE = 0.15
"""Share of messages that are mutated in their serialised form."""
_MAX_MUTATIONS = 6
_MANY = (2, 3, 17, 200)
"""Numbers of times that an element is repeated."""
_DESCEND = 0.8
"""Probability of mutating a part of a message instead of the whole."""
_RARE_SHARE = 0.02
"""Probability that a mutation chosen for a rare field is made."""
_MAX_SEEN = 200
"""Maximum stored parts of earlier messages, by type."""
_WHOLE = (0, 1, -1, 2, -2, 15, 16, 17, 96, 97, 98, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**31, 2**32 - 2)
_WHOLE += (2**32 - 1, 2**32, -(2**32), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1)
_REAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, 1.0000001, 0.9999999, 1e-45, 1e-39, 3e38, -3e38)
_REAL += (5e-324, 1.0 + 2**-52, 1e308, float("nan"), float("inf"), -float("inf"))
_TEXTS = (
    *("", " ", "\0", "a\0b", "a", "abc" * 90, "\n\r\t", "%s%n{}", "../../x", "\U0001f600", "e\u0301\u0301"),
    *("\u202eabc", "\ufeff", "\ufffd", "\ufffe", "\u2028", "İ", "ß" * 40, "用户", "'; DROP", "{{ 7 * 7 }}"),
)
_VALUES: dict[int, tuple[Any, ...]] = {
    F.TYPE_BOOL: (False, True),
    F.TYPE_ENUM: (0, 1, 2, 3, 4, 5, 99, -1, 2**31 - 1, -(2**31)),
    F.TYPE_STRING: _TEXTS,
    F.TYPE_BYTES: (b"", b"\0", b"\xff" * 9, b"abc" * 100),
}
"""Values that often break code, by the field's type; all others are numbers."""
_BOUNDS = {
    F.TYPE_UINT32: (0, 2**32 - 1),
    F.TYPE_INT32: (-(2**31), 2**31 - 1),
    F.TYPE_UINT64: (0, 2**64 - 1),
    F.TYPE_INT64: (-(2**63), 2**63 - 1),
}


class Mutator:
    """Mutator of copies of messages; it inserts parts of earlier messages."""

    def __init__(self, rng: Random, rare: frozenset[str] = frozenset()) -> None:
        """Store the generator, and fields to mutate rarely, as those hide other mutations."""
        self._rng, self._rare = rng, rare
        self._seen: dict[str, list[Message]] = {}

    def mutated(self, message: M) -> M:
        """Return a mutated copy that can still be parsed; gRPC refuses others before our code."""
        if self._rng.random() < _SERIALISED_SHARE:
            return self._spoil_bytes(message)
        copy = _copy(message)
        for _ in range(1 + min(int(self._rng.expovariate(1)), _MAX_MUTATIONS - 1)):
            self._spoil(copy)
        return copy

    def spoil_elements(self, elements: Any, indices: Sequence[int]) -> None:
        """Mutate the elements of a repeated message field at these indices, in place."""
        for index in indices:
            elements[index].CopyFrom(self.mutated(elements[index]))

    def _spoil(self, message: Message) -> None:
        """Mutate one field, mostly one that is set; rarely a rare one."""
        present = [field for field, _ in message.ListFields()]
        fields = present if present and self._rng.random() < 0.85 else list(message.DESCRIPTOR.fields)
        if not fields:
            return
        field = self._rng.choice(fields)
        if field.name in self._rare and self._rng.random() > _RARE_SHARE:
            self._spoil(message)
            return
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._spoil_map(value, field)
        elif field.is_repeated:
            self._spoil_list(value, field)
        elif field.message_type is None:
            if self._rng.random() < 0.1:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, self._value(field, value))
        elif message.HasField(field.name) and self._rng.random() < _DESCEND:
            self._spoil(value)
        elif message.HasField(field.name) and self._rng.random() < 0.3:
            message.ClearField(field.name)
        else:
            value.SetInParent()
            value.CopyFrom(self._donor(value))

    def _spoil_list(self, elements: Any, field: F) -> None:
        """Change one element, add one, or rearrange all."""
        rng, whole = self._rng, field.message_type is not None
        if not len(elements) or rng.random() < 0.1:
            if not whole:
                return elements.append(self._boundary(field))
            added = elements.add()
            return added.CopyFrom(self._donor(added))
        index = rng.randrange(len(elements))
        if rng.random() < (_DESCEND if whole else 0.5):
            if whole:
                return self._spoil(elements[index])
            elements[index] = self._value(field, elements[index])
            return None
        if whole and rng.random() < 0.3:
            return elements[index].CopyFrom(self._donor(elements[index]))
        changed = self._rearranged([_copy(element) if whole else element for element in elements], index)
        del elements[:]
        return elements.extend(changed)

    def _spoil_map(self, entries: Any, field: F) -> None:
        """Add, change or remove an entry of a map to plain values."""
        key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        if not entries or self._rng.random() < 0.4:
            entries[self._boundary(key_field)] = self._boundary(value_field)
            return
        key = self._rng.choice(sorted(entries))
        value = entries.pop(key)
        if self._rng.random() < 0.7:
            entries[key] = self._value(value_field, value)

    def _rearranged(self, elements: list[Any], index: int) -> list[Any]:
        """Drop, repeat, move or overwrite elements, or cut, empty, double or reverse the list."""
        before, one, rest = elements[:index], elements[index : index + 1], elements[index + 1 :]
        other = self._rng.choice(elements)
        many = one * self._rng.choice(_MANY)
        return self._rng.choice(
            [
                *(before + rest, before + many + rest, before, one + rest + before),
                *(elements[::-1], elements * 2, [], [*before, other, *rest]),
            ]
        )

    def _boundary(self, field: F) -> Any:
        if field.type in _BOUNDS:
            low, high = _BOUNDS[field.type]
            return self._rng.choice([number for number in _WHOLE if low <= number <= high])
        return self._rng.choice(_VALUES.get(field.type, _REAL))

    def _value(self, field: F, value: Any) -> Any:
        """Return a boundary value, or one close to a valid one: off by one, or a text repeated."""
        rng = self._rng
        if rng.random() < 0.5 or field.type in (F.TYPE_BOOL, F.TYPE_ENUM):
            return self._boundary(field)
        if field.type in _BOUNDS:
            low, high = _BOUNDS[field.type]
            moved = rng.choice((value + 1, value - 1, value * 2, -value, value ^ (1 << rng.randrange(31))))
            return min(max(moved, low), high)
        if field.type in _VALUES:
            cut = rng.randrange(len(value) + 1)
            return rng.choice((value[:cut], value + value, value[cut:] + value[:cut]))
        return value * rng.choice((-1.0, 0.0, 0.999, 1.001, 2.0, 1e-20))

    def _donor(self, part: Message) -> Message:
        """Return a part of an earlier message of this type, or an empty one; store this one."""
        seen = self._seen.setdefault(part.DESCRIPTOR.full_name, [])
        donor = self._rng.choice(seen) if seen and self._rng.random() < 0.8 else type(part)()
        if len(seen) == _MAX_SEEN:
            seen.pop(self._rng.randrange(_MAX_SEEN))
        seen.append(_copy(part))
        return donor

    def _spoil_bytes(self, message: M) -> M:
        """Truncate bytes, flip bits, drop or repeat a piece, or insert noise."""
        data, rng = message.SerializeToString(), self._rng
        for _ in range(20):
            start = rng.randrange(len(data) + 1)
            stop = min(len(data), start + 1 + rng.randrange(8))
            flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[start:stop])
            noise, rest = rng.randbytes(1 + rng.randrange(6)), data[stop:]
            pieces = (b"", flipped + rest, rest, data[start:stop] + data[start:], noise + data[start:])
            try:
                return type(message).FromString(data[:start] + rng.choice(pieces))
            except DecodeError:
                continue
        return message


def _copy(message: M) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
