"""Find the types and values that a JSON schema admits, behind references and combinations.

Both are upper bounds: what a schema admits is among them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

Types: TypeAlias = frozenset[str]
_ALL = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null", float: "number"}
_DEFINITIONS = ("$defs", "definitions")


def types_of(schema: Any, root: Any = None) -> Types:
    """Return the JSON types of a schema's values; empty: any type. `number` includes `integer`."""
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


def values_of(schema: Any, root: Any) -> list[Any] | None:
    """Return the values of which a schema admits some; None if they are not listed."""
    return _values(schema, root, frozenset())


def _values(schema: Any, root: Any, seen: frozenset[str]) -> list[Any] | None:
    if not isinstance(schema, Mapping):
        return None
    if isinstance(values := schema.get("enum"), list):
        return values
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "null":
        return [None]
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        return _values(resolved(reference, root), root, seen | {reference})
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            listed = [_values(part, root, seen) for part in parts]
            known = [values for values in listed if values is not None]
            return [value for values in known for value in values] if len(known) == len(listed) else None
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return None
    return next((values for part in parts if (values := _values(part, root, seen)) is not None), None)


def resolved(reference: str, root: Any) -> Any:
    """Return the part of the root schema that a reference names; True (any value) if there is none."""
    mark, _, pointer = unquote(reference).partition("#")
    part = root
    if mark or (pointer and not pointer.startswith("/")):
        return True
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return True
    return part


def definitions_in(part: Any, root: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the definitions that a part needs; None if it refers to other places."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = [part]
    while waiting:
        for reference in references_in(waiting.pop()):
            mark, table, *rest = [*reference.split("/"), "", ""]
            name = unquote(rest[0]).replace("~1", "/").replace("~0", "~")
            if mark != "#" or table not in _DEFINITIONS or not isinstance(root.get(table), Mapping):
                return None
            if name not in root[table]:
                return None
            if name not in needed.setdefault(table, {}):
                needed[table][name] = root[table][name]
                waiting.append(root[table][name])
    return needed


def references_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for value in schema.values():
            yield from references_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references_in(value)
