"""Rewrite JSON schemas as Lark rules whose objects take their declared keys in any order.

llguidance wants declared keys in the schema's order. Where further keys are allowed, or a declared key begins with
another one, a key out of order can be begun and not ended: the model writes on, and its key becomes another key. Here
such objects take declared keys in any order, and further keys once the required ones are given. Other parts of a
schema stay `%json`, and equal ones share a rule.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any

from llguidance import LLMatcher

from specinfer.constraints.references import definitions_in, references_in, resolved
from specinfer.constraints.schemas import lark_regex

_MAX_BITS = 64
"""Bits of llguidance's parametric rules."""
_KINDS = ("object", "array", "string", "number", "boolean", "null")
_OBJECT = {"properties", "required", "additionalProperties", "patternProperties"}
_ARRAY = {"items", "minItems", "maxItems"}
_SCALAR = {"minLength", "maxLength", "pattern", "format", "multipleOf"} | {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
}
_READ = _OBJECT | _ARRAY | _SCALAR | {"type"}
_OTHERS = {"enum", "const", "anyOf", "oneOf", "prefixItems", "minProperties", "maxProperties"}
"""Keywords that llguidance reads; a lenient schema may have any others."""
_ABOUT = {"title", "description", "default", "examples", "$comment", "$schema", "x-guidance"} | {
    *("$defs", "definitions", "deprecated", "readOnly", "writeOnly")
}
"""Keywords that constrain nothing at their place."""
_SIMPLE = _SCALAR | _ABOUT | {"type", "enum", "const"}
_KEY = r'"(\\(["\\\/bfnrt]|u00[01][0-9a-fA-F])|[^"\\\x00-\x1F\x7F])*"'
_BLANKS = r"[\x20\x0A\x0D\x09]+"


class UnreadableError(ValueError):
    """A part of a schema can only be read by llguidance, with the whole schema."""


class RuleWriter:
    """Writer of the Lark rules of a grammar's schemas."""

    def __init__(self, prefix: str) -> None:
        """Begin; the names of all rules begin with `prefix`."""
        self._prefix, self.names, self._numbers = prefix, dict[str, str](), count()
        """Names of rules by what they are."""
        self.lines = list[str]()

    def new(self) -> str:
        """Return an unused name."""
        return f"{self._prefix}_{next(self._numbers)}"

    def rule(self, body: str) -> str:
        """Return the name of the rule with this body."""
        if body not in self.names:
            self.names[body] = self.new()
            self.lines.append(f"{self.names[body]}: {body}")
        return self.names[body]


def has_traps(schema: Any) -> bool:
    """Return whether some object in a schema has keys that can be begun and not ended."""
    if isinstance(schema, list):
        return any(map(has_traps, schema))
    return isinstance(schema, dict) and (_is_trap(schema) or any(map(has_traps, schema.values())))


def _is_trap(schema: Mapping[str, Any]) -> bool:
    names = _names(schema)
    is_open = schema.get("additionalProperties", True) is not False or "patternProperties" in schema
    return bool(names) and (is_open or bool(_beginnings(names)))


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return an object's declared keys, required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    asked = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return list(dict.fromkeys([*asked, *(properties if isinstance(properties, dict) else ())]))


def _beginnings(names: Sequence[str]) -> set[str]:
    """Return the names with which other names begin."""
    ordered = sorted(set(names))
    return {one for one, after in pairwise(ordered) if after.startswith(one)}


class SchemaRules:
    """Rules of a schema with its definitions and llguidance's settings."""

    def __init__(self, writer: RuleWriter, root: Any, guidance: Mapping[str, Any]) -> None:
        self._writer, self._root, self._guidance = writer, root, dict(guidance)
        self._defined = dict[str, str]()
        """Names of rules by reference."""
        self._gap = ""
        if guidance.get("whitespace_flexible", True) or "whitespace_pattern" in guidance:
            pattern = str(guidance.get("whitespace_pattern") or _BLANKS)
            self._gap = f"{writer.rule(lark_regex(pattern))}?"
        self._comma, self._colon = (
            self._separator("item_separator", ","),
            self._separator("key_separator", ":"),
        )

    def _separator(self, setting: str, usual: str) -> str:
        return f"{self._gap} {json.dumps(str(self._guidance.get(setting, usual)))} {self._gap}"

    def rule(self, schema: Any) -> str:
        """Return the name of a schema's rule.

        Raises:
            UnreadableError: if only llguidance can read the schema.
        """
        if isinstance(schema, dict) and schema.keys() <= _SIMPLE:
            return self._as_json(schema)
        reference = (
            schema.get("$ref") if isinstance(schema, dict) and schema.keys() - _ABOUT == {"$ref"} else None
        )
        if isinstance(reference, str) and (part := resolved(reference, self._root)) is not True:
            if reference not in self._defined:
                # named first, since a definition may contain itself
                name = self._defined[reference] = self._writer.new()
                self._writer.lines.append(f"{name}: {self.rule(part)}")
            return self._defined[reference]
        far = isinstance(self._root, dict) and definitions_in(schema, self._root) is None
        body = self._combined(schema) if far or self._has_traps(schema) else None
        if body is None and far:
            raise UnreadableError
        return self._as_is(schema) if body is None else self._writer.rule(body)

    def _has_traps(self, schema: Any) -> bool:
        """Return whether a schema has traps, also behind references."""
        seen, waiting = set[str](), [schema]
        while waiting:
            part = waiting.pop()
            if has_traps(part):
                return True
            new = set(references_in(part)) - seen
            seen |= new
            waiting += [resolved(reference, self._root) for reference in new]
        return False

    def _as_is(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return self._writer.rule("%json false") if schema is False else self._as_json({})
        needed = definitions_in(schema, self._root) if isinstance(self._root, dict) else None
        return self._as_json(schema, needed or {})

    def _as_json(
        self, schema: Mapping[str, Any], definitions: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        whole = {key: value for key, value in schema.items() if key not in _ABOUT}
        return self._writer.rule(
            f"%json {json.dumps({**whole, **definitions, 'x-guidance': self._guidance})}"
        )

    def _combined(self, given: Any) -> str | None:
        """Return the body of a schema's rule; None if only llguidance can read it."""
        schema = self._merged(given)
        if schema is None:
            return None
        for key in [key for key in ("anyOf", "oneOf") if key in schema]:
            options, rest = schema[key], {name: value for name, value in schema.items() if name != key}
            if (
                not isinstance(options, list)
                or not options
                or (key == "oneOf" and not self._is_any_of(options))
            ):
                return None
            parts = [{"allOf": [rest, one]} if rest else one for one in options]
            return " | ".join(dict.fromkeys(map(self.rule, parts)))
        kinds = schema.get("type", [*_KINDS])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not schema.keys() <= _READ:
            return None
        either = list[str | None]()
        if scalars := [kind for kind in kinds if kind not in ("object", "array")]:
            scalar = {key: value for key, value in schema.items() if key in _SCALAR}
            either.append(self._as_is({"type": scalars, **scalar}))
        either += [self._array(schema)] if "array" in kinds else []
        either += [self._object(schema)] if "object" in kinds else []
        return None if None in either else " | ".join([body for body in either if body])

    def _merged(self, schema: Any, depth: int = 0) -> dict[str, Any] | None:
        """Return an equal schema without `allOf` and `$ref` at its top; None if there is no simple one."""
        if not isinstance(schema, dict) or depth > 16:
            return {} if schema is True else None
        own = {
            key: value for key, value in schema.items() if key not in ("$ref", "allOf") and key not in _ABOUT
        }
        if self._guidance.get("lenient"):
            own = {key: value for key, value in own.items() if key in _READ | _OTHERS}
        parts = schema.get("allOf", [])
        if not isinstance(parts, list):
            return None
        if isinstance(reference := schema.get("$ref"), str):
            parts = [*parts, resolved(reference, self._root)]
        merged: dict[str, Any] | None = own
        for part in parts:
            other = self._merged(part, depth + 1)
            merged = None if merged is None or other is None else _both(merged, other)
        return merged

    def _is_any_of(self, options: list[Any]) -> bool:
        """Return whether llguidance takes `oneOf` as `anyOf`: no two options can hold, or the schema is lenient."""
        needed = definitions_in(options, self._root) if isinstance(self._root, dict) else None
        whole = {"oneOf": options, **(needed or {}), "x-guidance": self._guidance}
        return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(whole)))

    def _array(self, schema: Mapping[str, Any]) -> str | None:
        least, most, items = (
            schema.get("minItems", 0),
            schema.get("maxItems", _MAX_ITEMS),
            schema.get("items", True),
        )
        if (
            not isinstance(least, int)
            or not isinstance(most, int)
            or isinstance(items, list)
            or most < max(least, 1)
        ):
            return None
        more = f"{{{max(0, least - 1)},{most - 1 if 'maxItems' in schema else ''}}}"
        item = self.rule(items)
        filled = f'"[" {self._gap} {item} ({self._comma} {item}){more} {self._gap} "]"'
        return filled if least else f'"[" {self._gap} "]" | {filled}'

    def _object(self, schema: Mapping[str, Any]) -> str | None:
        """Return the body of an object's rule; its bits are keys that were given."""
        names, properties, asked = _names(schema), schema.get("properties", {}), schema.get("required", [])
        if (
            not isinstance(properties, dict)
            or not isinstance(asked, list)
            or not set(map(type, asked)) <= {str}
        ):
            return None
        required, further = len(set(asked)), self._further(schema, names)
        if further is None or required > _MAX_BITS:
            return None
        again = set(names) if further else _beginnings(names)
        bits = {
            name: bit for bit, name in enumerate(names[:_MAX_BITS]) if bit < required or name not in again
        }
        whole = f"is_ones([0:{required}])" if required else "true"
        either = list[str]()
        for name in names:
            value = self.rule(properties.get(name, schema.get("additionalProperties", True)))
            then = f"::set_bit({bits[name]})" if name in bits else "::_"
            once = f" %if bit_clear({bits[name]})" if name in bits and name not in again else ""
            either.append(f"{_literal(name)} {self._colon} {value} AFTER{then}{once}")
        pairs = " | ".join([f"{key} {self._colon} {value}" for key, value in further])
        empty = f'"{{" {self._gap} "}}"'
        if not either and not pairs:
            return empty
        filled = f'"{{" {self._gap} {self._members(" | ".join(either), pairs, whole)}::0x0'
        return filled if required else f"{empty} | {filled}"

    def _members(self, declared: str, further: str, whole: str) -> str:
        """Return the name of the rule of the rest of an object, from a key on.

        Further keys in a row are one rule: llguidance bounds the rows of rules that end with themselves.
        """
        known = self._writer.names.get(f"members: {declared}; {further}")
        if known is not None:
            return known
        member, named, after = self._writer.new(), self._writer.new(), self._writer.new()
        self._writer.names[f"members: {declared}; {further}"] = member
        end, either = f'{self._gap} "}}" %if {whole}', [f"{named}::_"] if declared else []
        if declared:
            self._writer.lines += [
                f"{named}::_: {declared.replace(' AFTER::', f' {after}::')}",
                f"{after}::_: {self._comma} {member}::_ | {end}",
            ]
        if further:
            many, last, pair = self._writer.new(), self._writer.new(), self._writer.rule(further)
            self._writer.lines += [
                f"{many}: {pair} | {many} {self._comma} {pair}",
                f"{last}::_: {' | '.join([*[f'{self._comma} {one}' for one in either], end])}",
            ]
            either.append(f"{many} {last}::_ %if {whole}")
        self._writer.lines.append(f"{member}::_: {' | '.join(either)}")
        return member

    def _further(self, schema: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, str]] | None:
        """Return (key, value) of keys that are not declared; None if only llguidance can read them."""
        patterns, allowed = schema.get("patternProperties", {}), schema.get("additionalProperties", True)
        if not isinstance(patterns, dict):
            return None
        taken, further = [_literal(name) for name in names], list[tuple[str, str]]()
        for pattern, value in patterns.items():
            key = _key_pattern(pattern)
            if key is None or any(re.search(pattern, name) for name in names):
                return None
            taken.append(key)
            further.append((self._terminal(f"/{_KEY}/ & {key}"), self.rule(value)))
        if allowed is not False:
            others = f"/{_KEY}/" + (f" & ~({' | '.join(taken)})" if taken else "")
            further.append((self._terminal(others), self.rule(allowed)))
        return further

    def _terminal(self, body: str) -> str:
        """Return the name of a terminal, which has capital letters in Lark."""
        names = self._writer.names
        if body not in names:
            names[body] = self._writer.new().upper()
            self._writer.lines.append(f"{names[body]}: {body}")
        return names[body]


_MAX_ITEMS = 2**31


def _literal(name: str) -> str:
    """Return the Lark terminal of a key."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _key_pattern(pattern: str) -> str | None:
    """Return the Lark terminal of the keys that a simple pattern finds."""
    simple = re.fullmatch(r"(\^?)([\w\s./:@\[\](){}+*?,\\-]*)(\$?)", pattern)
    try:
        re.compile(pattern)
    except re.error:
        return None
    if simple is None or "(?" in pattern or pattern.endswith("\\$"):
        return None
    before, after = "" if simple[1] else "(?s:.*)", "" if simple[3] else "(?s:.*)"
    return lark_regex(f'"{before}({simple[2]}){after}"')


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of what both schemas admit; None if it is not simple."""
    if not one or not other:
        return one or other
    simple = {"type", "properties", "required"}
    for part in (one, other):
        if (
            not part.keys() <= simple | {"additionalProperties"}
            or part.get("additionalProperties", True) is not True
        ):
            return None
        if part.get("type", "object") != "object" or not isinstance(part.get("properties", {}), dict):
            return None
    if "type" not in one and "type" not in other:
        return None
    properties = dict(one.get("properties", {}))
    for name, part in other.get("properties", {}).items():
        properties[name] = {"allOf": [properties[name], part]} if name in properties else part
    return {
        "type": "object",
        "properties": properties,
        "required": [*one.get("required", []), *other.get("required", [])],
    }
