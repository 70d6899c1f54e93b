"""Write Lark rules of JSON schemas with declared keys in any order.

llguidance wants declared keys in the schema's order. Where further keys are allowed, or a declared key begins with
another one, a key out of order can be begun and not ended: the model writes on, and its key becomes another key. Here
objects take declared keys in any order, and further keys once the required ones are given. What is no object or list
stays `%json`; equal schemas share a rule.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Any

from llguidance import LLMatcher

from specinfer.text.constraints.references import definitions_in, resolved
from specinfer.text.constraints.schemas import NOTES, lark_regex

_MAX_BITS = 64
"""Bits of llguidance's parametric rules."""
_KINDS = ["object", "array", "string", "number", "boolean", "null"]
_OPEN = {"type", "properties", "required", "additionalProperties"}
_SCALAR = {"minLength", "maxLength", "pattern", "format", "multipleOf"} | {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
}
_READ = _OPEN | _SCALAR | {"patternProperties", "items", "minItems", "maxItems"}
_NESTED = (_READ - _SCALAR - {"type", "minItems", "maxItems"}) | {"$ref", "allOf", "anyOf", "oneOf"}
_OTHERS = {"enum", "const", "anyOf", "oneOf", "prefixItems", "minProperties", "maxProperties"}
"""Keywords that llguidance reads; a lenient schema may have any others."""
_ABOUT = NOTES | {"x-guidance", "$defs", "definitions"}
"""Keywords that constrain nothing at their place."""
_KEY = r'/"(\\(["\\\/bfnrt]|u00[01][0-9a-fA-F])|[^"\\\x00-\x1F\x7F])*"/'
_BLANKS = r"[\x20\x0A\x0D\x09]+"


class UnreadableError(ValueError):
    """A part of a schema needs the whole schema to be read."""


def has_traps(schema: Any) -> bool:
    """Return whether an object has keys that cannot be ended."""
    if isinstance(schema, list):
        return any(map(has_traps, schema))
    if not isinstance(schema, dict):
        return False
    names, closed = _names(schema), schema.get("additionalProperties", True) is False
    trap = names and (not closed or "patternProperties" in schema or _beginnings(names))
    return bool(trap) or any(map(has_traps, schema.values()))


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return an object's declared keys, required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    asked = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return list(dict.fromkeys([*asked, *(properties if isinstance(properties, dict) else ())]))


def _beginnings(names: Sequence[str]) -> set[str]:
    """Return the names with which other names begin."""
    return {one for one, after in pairwise(sorted(set(names))) if after.startswith(one)}


class ObjectRules:
    """Writer of Lark rules of schemas."""

    def __init__(self, prefix: str) -> None:
        """Begin; all names of rules begin with `prefix`."""
        self.lines = list[str]()
        self._prefix, self._numbers, self._named = prefix, count(), dict[str, str]()

    def start(self, root: Any, guidance: Mapping[str, Any]) -> str:
        """Return the name of a schema's rule; `guidance`: llguidance's settings."""
        self._root, self._guidance, self._defined = root, dict(guidance), dict[str, str]()
        self._gap = ""
        if guidance.get("whitespace_flexible", True) or "whitespace_pattern" in guidance:
            self._gap = f"{self._line(lark_regex(str(guidance.get('whitespace_pattern') or _BLANKS)))}?"
        comma, colon = guidance.get("item_separator", ","), guidance.get("key_separator", ":")
        self._comma, self._colon = [
            f"{self._gap} {json.dumps(str(one))} {self._gap}" for one in (comma, colon)
        ]
        return self._rule(root)

    def _new(self) -> str:
        return f"{self._prefix}_{next(self._numbers)}"

    def _line(self, body: str) -> str:
        """Return the name of the rule or terminal with this body."""
        if body not in self._named:
            self._named[body] = self._new().upper() if body.startswith("/") else self._new()
            self.lines.append(f"{self._named[body]}: {body}")
        return self._named[body]

    def _rule(self, schema: Any) -> str:
        """Return the name of a schema's rule."""
        if isinstance(schema, dict) and schema.keys() - _ABOUT == {"$ref"}:
            reference = schema["$ref"]
            part = resolved(reference, self._root) if isinstance(reference, str) else True
            if part is not True and reference not in self._defined:
                # named first, since a definition may contain itself
                name = self._defined[reference] = self._new()
                self.lines.append(f"{name}: {self._rule(part)}")
            if part is not True:
                return self._defined[reference]
        body = self._combined(schema)
        return self._as_is(schema) if body is None else self._line(body)

    def _as_is(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return self._as_is({}) if schema is True else self._line(f"%json {json.dumps(schema)}")
        needed = definitions_in(schema, self._root)
        if needed is None:
            raise UnreadableError
        whole = {key: value for key, value in schema.items() if key not in _ABOUT}
        return self._line(f"%json {json.dumps({**whole, **needed, 'x-guidance': self._guidance})}")

    def _combined(self, given: Any) -> str | None:
        """Return the body of a schema's rule; None: llguidance reads it."""
        if not isinstance(given, dict) or not given.keys() & _NESTED:
            return None
        schema = self._merged(given)
        if schema is None:
            return None
        for key in [key for key in ("anyOf", "oneOf") if key in schema]:
            options, rest = schema[key], {name: value for name, value in schema.items() if name != key}
            listed = isinstance(options, list) and options
            if not listed or (key == "oneOf" and not self._is_any_of(options)):
                return None
            return " | ".join(
                dict.fromkeys([self._rule({"allOf": [rest, one]} if rest else one) for one in options])
            )
        kinds = schema.get("type", _KINDS)
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not schema.keys() <= _READ or not {"object", "array"} & {
            kind for kind in kinds if isinstance(kind, str)
        }:
            return None
        bodies: list[str | None] = [self._array(schema)] if "array" in kinds else []
        bodies += [self._object(schema)] if "object" in kinds else []
        if scalars := [kind for kind in kinds if kind not in ("object", "array")]:
            scalar = {key: value for key, value in schema.items() if key in _SCALAR}
            bodies.append(self._as_is({"type": scalars, **scalar}))
        return None if None in bodies else " | ".join([body for body in bodies if body])

    def _merged(self, schema: Any, depth: int = 0) -> dict[str, Any] | None:
        """Return the schema without outer `allOf` and `$ref`; None if not simple."""
        if not isinstance(schema, dict) or depth > 16 or not isinstance(schema.get("allOf", []), list):
            return {} if schema is True else None
        dropped = {"$ref", "allOf"} | _ABOUT
        if self._guidance.get("lenient"):
            dropped |= schema.keys() - _READ - _OTHERS
        merged: dict[str, Any] | None = {key: value for key, value in schema.items() if key not in dropped}
        target = [resolved(str(schema["$ref"]), self._root)] if "$ref" in schema else []
        for part in [*schema.get("allOf", []), *target]:
            other = self._merged(part, depth + 1)
            merged = None if merged is None or other is None else _both(merged, other)
        return merged

    def _is_any_of(self, options: list[Any]) -> bool:
        """Return whether llguidance takes these options of `oneOf` as `anyOf`."""
        whole = {
            "oneOf": options,
            **(definitions_in(options, self._root) or {}),
            "x-guidance": self._guidance,
        }
        return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(whole)))

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        least, most = schema.get("minItems", 0), schema.get("maxItems", 2**31)
        items, counts = schema.get("items", True), isinstance(least, int) and isinstance(most, int)
        if not counts or isinstance(items, list) or most < max(least, 1):
            return None
        more = f"{{{max(0, least - 1)},{most - 1 if 'maxItems' in schema else ''}}}"
        item = self._rule(items)
        filled = f'"[" {self._gap} {item} ({self._comma} {item}){more} {self._gap} "]"'
        return filled if least else f'"[" {self._gap} "]" | {filled}'

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        """Return the body of an object's rule; bits are given keys."""
        written, properties, asked = _names(schema), schema.get("properties", {}), schema.get("required", [])
        texts = isinstance(asked, list) and set(map(type, asked)) <= {str}
        if not texts or not isinstance(properties, dict):
            return None
        required, further = len(set(asked)), self._further(schema, written)
        names = [name for name in written if name in asked or properties.get(name) is not False]
        if further is None or required > _MAX_BITS:
            return None
        again = set(names) if further else _beginnings(names)
        bits = {
            name: bit for bit, name in enumerate(names[:_MAX_BITS]) if bit < required or name not in again
        }
        whole = f"is_ones([0:{required}])" if required else "true"
        declared = list[str]()
        for name in names:
            value = self._rule(properties.get(name, schema.get("additionalProperties", True)))
            then = f"::set_bit({bits[name]})" if name in bits else "::_"
            once = f" %if bit_clear({bits[name]})" if name in bits and name not in again else ""
            declared.append(f"{_literal(name)} {self._colon} {value} AFTER{then}{once}")
        empty, pair = f'"{{" {self._gap} "}}"', self._line(" | ".join(further)) if further else ""
        # once every key is given that may be given once, no comma follows
        left = "true" if again or len(names) > _MAX_BITS else f"not(is_ones([0:{len(names)}]))"
        if declared:
            filled = f'"{{" {self._gap} {self._members(" | ".join(declared), pair, whole, left)}::0x0'
        else:
            filled = f'"{{" {self._gap} {pair} ({self._comma} {pair})* {self._gap} "}}"' if pair else empty
        return filled if required else f"{empty} | {filled}"

    def _further(self, schema: Mapping[str, Any], names: Sequence[str]) -> list[str] | None:
        """Return the members that are not declared; None: llguidance reads them."""
        patterns, value = schema.get("patternProperties", {}), schema.get("additionalProperties", True)
        taken, further = [_literal(name) for name in names], list[str]()
        for pattern, part in patterns.items() if isinstance(patterns, dict) else ():
            key = _key_pattern(pattern)
            if key is None or any(re.search(pattern, name) for name in names):
                return None
            taken.append(key)
            further.append(f"{self._line(f'{_KEY} & {key}')} {self._colon} {self._rule(part)}")
        if value is not False:
            others = f"{_KEY} & ~({' | '.join(taken)})" if taken else _KEY
            further.append(f"{self._line(others)} {self._colon} {self._rule(value)}")
        return further

    def _members(self, declared: str, pair: str, whole: str, left: str) -> str:
        """Return the rule's name of an object's rest, from a key on.

        `pair` is the rule of further members. Those in a row are one rule: llguidance bounds the rows of rules that
        end with themselves.
        """
        known = f"{declared}; {pair}; {whole}"
        if known in self._named:
            return self._named[known]
        member, named, after, last, many = [self._new() for _ in range(5)]
        self._named[known], end = member, f'{self._gap} "}}" %if {whole}'
        self.lines += [
            f"{named}::_: {declared.replace(' AFTER::', f' {after}::')}",
            f"{after}::_: {self._comma} {member}::_ %if {left} | {end}",
            f"{member}::_: {named}::_" + (f" | {many} {last}::_ %if {whole}" if pair else ""),
        ]
        if pair:
            self.lines += [
                f"{many}: {pair} ({self._comma} {pair})*",
                f"{last}::_: {self._comma} {named}::_ | {end}",
            ]
        return member


def _literal(name: str) -> str:
    """Return the Lark terminal of a key."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _key_pattern(pattern: str) -> str | None:
    """Return the Lark terminal of the keys that a simple pattern finds."""
    simple = re.fullmatch(r"(\^?)((?:[\w\s.:@,-]|\[[\w.-]*\]|[*+])*)(\$?)", pattern)
    if simple is None:
        return None
    before, after = "" if simple[1] else "(?s:.*)", "" if simple[3] else "(?s:.*)"
    return f'/"{before}{simple[2]}{after}"/'


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Return the intersection of two schemas; None if they are not simple."""
    if not one or not other:
        return one or other
    for part in (one, other):
        is_open = part.get("additionalProperties", True) is True
        if not is_open or not part.keys() <= _OPEN or part.get("type") != "object":
            return None
    required = [*one.get("required", []), *other.get("required", [])]
    properties = dict(one.get("properties", {}))
    for name, part in other.get("properties", {}).items():
        properties[name] = {"allOf": [properties[name], part]} if name in properties else part
    return {"type": "object", "properties": properties, "required": required}
