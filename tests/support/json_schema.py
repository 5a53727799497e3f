"""As much of JSON Schema as our own schema uses, so that testing needs no further package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

SCHEMA: dict[str, Any] = json.loads(
    files("headway").joinpath("schemas/output-1.json").read_text(encoding="utf-8")
)
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "anyOf", "allOf", "type", "enum"),
    *("const", "required", "properties", "items", "pattern", "minimum"),
}
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def misfits(data: Any, kind: str) -> list[str]:
    """What does not fit the definition of this name, each with its place; empty: it fits."""
    return list(_misfits(data, {"$ref": f"#/$defs/{kind}"}, kind))


def keywords(schema: Any = None) -> set[str]:
    """Every keyword the schema uses: one that is not in KNOWN would go untested."""
    found: set[str] = set()
    stack = [SCHEMA if schema is None else schema]
    while stack:
        at = stack.pop()
        if not isinstance(at, dict):
            continue
        found |= at.keys()
        stack += [*at.get("$defs", {}).values(), *at.get("properties", {}).values()]
        stack += [*at.get("anyOf", []), *at.get("allOf", []), at.get("items")]
    return found


def _misfits(data: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _misfits(data, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], at)
    for part in schema.get("allOf", []):
        yield from _misfits(data, part, at)
    choices = schema.get("anyOf", [])
    if choices and all(list(_misfits(data, part, at)) for part in choices):
        yield f"{at}: {data!r:.60} is none of what is allowed"
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(_is(data, name) for name in wanted):
        yield f"{at}: {data!r:.60} is no {' or '.join(wanted)}"
    if "const" in schema and data != schema["const"]:
        yield f"{at}: {data!r:.60} is not {schema['const']!r}"
    if "enum" in schema and data not in schema["enum"]:
        yield f"{at}: {data!r:.60} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], str(data)):
        yield f"{at}: {data!r:.60} does not match {schema['pattern']}"
    if "minimum" in schema and data < schema["minimum"]:
        yield f"{at}: {data!r} is below {schema['minimum']}"
    if isinstance(data, dict):
        yield from (
            f"{at}: {key} is missing" for key in schema.get("required", ()) if key not in data
        )
        for key, part in schema.get("properties", {}).items():
            if key in data:
                yield from _misfits(data[key], part, f"{at}.{key}")
    if isinstance(data, list) and "items" in schema:
        for number, item in enumerate(data):
            yield from _misfits(item, schema["items"], f"{at}[{number}]")


def _is(data: Any, name: str) -> bool:
    if isinstance(data, bool):
        return name == "boolean"
    return isinstance(data, _TYPES[name])
