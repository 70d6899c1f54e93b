"""Mutate protobuf messages by their structure, reproducibly from a random generator.

Most mutations change the parsed message: values, repeated fields, parts of earlier messages. The others change
the serialised form.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.message import DecodeError, Message

from tests.fuzz.values import boundary_value, near_value

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


class Mutator:
    """Mutator of copies of messages; it inserts parts of earlier messages."""

    def __init__(self, rng: Random, rare: frozenset[str] = frozenset(), remembered: int = 200) -> None:
        """Store the generator, and fields to mutate rarely, as those hide other mutations."""
        self._rng, self._rare, self._max_seen = rng, rare, remembered
        self._seen: dict[str, list[Message]] = {}

    def mutated(self, message: M) -> M:
        """Return a mutated copy that can still be parsed; gRPC refuses others before our code."""
        if self._rng.random() < _SERIALISED_SHARE:
            return self._spoil_bytes(message)
        copy = type(message)()
        copy.CopyFrom(message)
        for _ in range(1 + min(int(self._rng.expovariate(1)), _MAX_MUTATIONS - 1)):
            self._spoil(copy)
        return copy

    def spoil_elements(self, elements: Any, indices: Sequence[int]) -> None:
        """Mutate the elements of a repeated message field at these indices, in place."""
        for index in indices:
            elements[index].CopyFrom(self.mutated(elements[index]))

    def _spoil(self, message: Message) -> None:
        while True:
            field = self._field(message)
            if field is None:
                return None
            if field.message_type is None:
                return self._spoil_plain(message, field)
            if field.message_type.GetOptions().map_entry:
                return self._spoil_map(getattr(message, field.name), field.message_type.fields_by_name)
            below = self._below(message, field)
            if below is None or self._rng.random() > _DESCEND:
                return self._spoil_messages(message, field)
            message = below

    def _field(self, message: Message) -> F | None:
        """Choose a field, mostly one that is set."""
        present = [field for field, _ in message.ListFields()]
        every = list(message.DESCRIPTOR.fields)
        fields = present if present and self._rng.random() < 0.85 else every
        if not fields:
            return None
        field = self._rng.choice(fields)
        return (
            self._field(message) if field.name in self._rare and self._rng.random() > _RARE_SHARE else field
        )

    def _below(self, message: Message, field: F) -> Message | None:
        if not field.is_repeated:
            return getattr(message, field.name) if message.HasField(field.name) else None
        elements = getattr(message, field.name)
        return self._rng.choice(elements) if len(elements) else None

    def _value(self, field: F, value: Any) -> Any:
        return (
            near_value(field, value, self._rng)
            if self._rng.random() < 0.5
            else boundary_value(field, self._rng)
        )

    def _spoil_plain(self, message: Message, field: F) -> None:
        if not field.is_repeated:
            if self._rng.random() < 0.1:
                return message.ClearField(field.name)
            return setattr(message, field.name, self._value(field, getattr(message, field.name)))
        elements = getattr(message, field.name)
        if not len(elements) or self._rng.random() < 0.1:
            return elements.append(boundary_value(field, self._rng))
        if self._rng.random() < 0.5:
            index = self._rng.randrange(len(elements))
            elements[index] = self._value(field, elements[index])
            return None
        changed = self._rearranged(list(elements))
        del elements[:]
        return elements.extend(changed)

    def _spoil_map(self, entries: Any, fields: Mapping[str, F]) -> None:
        """Add, change or remove an entry of a map to plain values."""
        if not entries or self._rng.random() < 0.4:
            entries[boundary_value(fields["key"], self._rng)] = boundary_value(fields["value"], self._rng)
            return
        key = self._rng.choice(sorted(entries))
        value = entries.pop(key)
        if self._rng.random() < 0.7:
            entries[key] = self._value(fields["value"], value)

    def _spoil_messages(self, message: Message, field: F) -> None:
        if not field.is_repeated:
            if message.HasField(field.name) and self._rng.random() < 0.3:
                return message.ClearField(field.name)
            part = getattr(message, field.name)
            part.SetInParent()
            return part.CopyFrom(self._donor(part))
        elements = getattr(message, field.name)
        if not len(elements) or self._rng.random() < 0.2:
            added = elements.add()
            return added.CopyFrom(self._donor(added))
        if self._rng.random() < 0.3:
            chosen = self._rng.choice(elements)
            return chosen.CopyFrom(self._donor(chosen))
        changed = self._rearranged([_copy(element) for element in elements])
        del elements[:]
        return elements.extend(changed)

    def _rearranged(self, elements: list[Any]) -> list[Any]:
        """Drop, repeat, move or overwrite elements, or cut, empty, double or reverse the list."""
        rng, index = self._rng, self._rng.randrange(len(elements))
        other = rng.randrange(len(elements))
        ways: tuple[Callable[[], list[Any]], ...] = (
            lambda: elements[:index] + elements[index + 1 :],
            lambda: elements[:index] + [elements[index]] * rng.choice(_MANY) + elements[index + 1 :],
            lambda: elements[:index],
            lambda: elements[index:] + elements[:index],
            lambda: elements[::-1],
            lambda: elements + elements,
            list,
            lambda: [elements[other] if i == index else x for i, x in enumerate(elements)],
        )
        return rng.choice(ways)()

    def _donor(self, part: Message) -> Message:
        """Return a part of an earlier message of this type, or an empty one; store this one."""
        seen = self._seen.setdefault(part.DESCRIPTOR.full_name, [])
        donor = self._rng.choice(seen) if seen and self._rng.random() < 0.8 else type(part)()
        if len(seen) < self._max_seen:
            seen.append(_copy(part))
        else:
            seen[self._rng.randrange(self._max_seen)] = _copy(part)
        return donor

    def _spoil_bytes(self, message: M) -> M:
        data = message.SerializeToString()
        for _ in range(20):
            copy = type(message)()
            try:
                copy.ParseFromString(spoil_bytes(data, self._rng))
            except DecodeError:
                continue
            return copy
        return message


def spoil_bytes(data: bytes, rng: Random) -> bytes:
    """Truncate bytes, flip bits, drop or repeat a piece, or insert noise."""
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + 1 + rng.randrange(8))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: data[:start],
        lambda: (
            data[:start] + bytes([byte ^ (1 << rng.randrange(8)) for byte in data[start:stop]]) + data[stop:]
        ),
        lambda: data[:start] + data[stop:],
        lambda: data[:stop] + data[start:],
        lambda: data[:start] + rng.randbytes(1 + rng.randrange(6)) + data[start:],
    )
    return rng.choice(ways)()


def _copy(message: M) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
