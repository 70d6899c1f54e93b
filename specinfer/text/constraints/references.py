"""Find types and values of JSON schemas with references and combinations.

Both are upper bounds: a schema admits nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

Types: TypeAlias = frozenset[str]
_ALL = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null", float: "number"}


def types_of(schema: Any, root: Any = None) -> Types:
    """Return the JSON types of a schema's values; empty: any type.

    `number` includes `integer`.
    """
    types = _types(schema, root, frozenset())
    return frozenset() if types == _ALL else types - {"integer"} if "number" in types else types


def _types(schema: Any, root: Any, seen: frozenset[str]) -> Types:
    if not isinstance(schema, Mapping):
        return frozenset() if schema is False else _ALL
    types = _ALL
    if isinstance(named := schema.get("type"), str | list):
        kinds = {kind for kind in ([named] if isinstance(named, str) else named) if isinstance(kind, str)}
        types &= (kinds | {"integer"} if "number" in kinds else kinds) or _ALL
    if isinstance(values := schema.get("enum"), list):
        types &= frozenset().union(*map(_type_of, values))
    if "const" in schema:
        types &= _type_of(schema["const"])
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        types &= _types(resolved(reference, root), root, seen | {reference})
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            types &= _types(part, root, seen)
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            types &= frozenset[str]().union(*[_types(part, root, seen) for part in parts])
    return types


def _type_of(value: Any) -> Types:
    """Return a value's type; 1.0 is an integer, too."""
    if isinstance(value, int) and not isinstance(value, bool):
        return frozenset(["integer"])
    whole = isinstance(value, float) and value.is_integer()
    return frozenset([_TYPES[type(value)], *(["integer"] if whole else [])])


def values_of(schema: Any, root: Any, seen: frozenset[str] = frozenset()) -> list[Any] | None:
    """Return the values of a schema; None if they are not listed."""
    if not isinstance(schema, dict):
        return None
    if isinstance(values := schema.get("enum"), list):
        return values
    if "const" in schema or schema.get("type") == "null":
        return [schema.get("const")]
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            listed = [values_of(part, root, seen) for part in parts]
            known = [value for values in listed if values is not None for value in values]
            return None if None in listed else known
    parts = list(all_of) if isinstance(all_of := schema.get("allOf"), list) else []
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        parts, seen = [*parts, resolved(reference, root)], seen | {reference}
    return next((values for part in parts if (values := values_of(part, root, seen)) is not None), None)


def resolved(reference: str, root: Any) -> Any:
    """Return the root schema's part for a reference; True if absent."""
    mark, _, pointer = unquote(reference).partition("#")
    part = root
    if mark or (pointer and not pointer.startswith("/")):
        return True
    for step in pointer.split("/")[1:]:
        name = _step(step)
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return True
    return part


def definitions_in(part: Any, root: Any) -> dict[str, dict[str, Any]] | None:
    """Return the definitions of a part's references; None if some are elsewhere."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = list(_references(part))
    while waiting:
        place = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", waiting.pop())
        if place is None or (definition := resolved(place[0], root)) is True:
            return None
        name = _step(unquote(place[2]))
        if name not in needed.setdefault(place[1], {}):
            needed[place[1]][name] = definition
            waiting += _references(definition)
    return needed


def _step(written: str) -> str:
    return written.replace("~1", "/").replace("~0", "~")


def _references(schema: Any) -> Iterator[str]:
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        yield reference
    for part in below:
        yield from _references(part)
