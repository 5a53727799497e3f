"""State of checks as JSON, so that it survives a resume.

`encode` and `decode` write and read the attributes of a check: numbers, text, lists, dicts, and
classes with `@register_state_class` and the two methods of `Restorable`.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Protocol, TypeVar

from headway.core.numbers import decode_number, encode_number


class Restorable(Protocol):
    """An object that converts itself to JSON data."""

    def to_state(self) -> Any:
        """JSON-able state (floats may be non-finite)."""

    @classmethod
    def from_state(cls, state: Any) -> Any:
        """The object with that state."""


_CLASSES: dict[str, type[Restorable]] = {}
_FLOATS = frozenset({float})
PLAIN = frozenset({int, bool, str, type(None)})
"""Types whose values are JSON data as they are."""
M = TypeVar("M", bound=type[Restorable])


def register_state_class(cls: M) -> M:
    """Class decorator: let `encode` and `decode` handle instances of this class."""
    _CLASSES[cls.__name__] = cls
    return cls


def encode(value: Any) -> Any:
    """The value as JSON data. Raises TypeError for a type that could not be read back."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, float):
        number = encode_number(value)
        return number if isinstance(number, float) else {"$number": number}
    # Exactly these types: a defaultdict would be restored as a dict, and fail only after a resume.
    if kind is list:
        if _FLOATS.issuperset(map(type, value)) and all(map(isfinite, value)):
            return value.copy()  # as in every window
        return [item if type(item) in PLAIN else encode(item) for item in value]
    if kind is dict:
        return {
            "$dict": [
                [
                    key if type(key) in PLAIN else encode(key),
                    item if type(item) in PLAIN else encode(item),
                ]
                for key, item in value.items()
            ]
        }
    if kind is tuple:
        return {"$tuple": [item if type(item) in PLAIN else encode(item) for item in value]}
    if kind is set or kind is frozenset:
        return {"$" + kind.__name__: [encode(item) for item in sorted(value)]}
    if isinstance(value, (bool, int, str)):
        return value
    if _CLASSES.get(type(value).__name__) is type(value):
        return {"$" + type(value).__name__: encode(value.to_state())}
    raise TypeError(
        f"cannot keep a {type(value).__name__} across a resume; "
        "use numbers, text, lists, dicts or a class marked @register_state_class"
    )


def decode(data: Any) -> Any:
    """The value that `encode` wrote."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    [(tag, inner)] = data.items()
    if tag == "$number":
        return decode_number(inner)
    if tag == "$tuple":
        return tuple(decode(item) for item in inner)
    if tag == "$set":
        return {decode(item) for item in inner}
    if tag == "$frozenset":
        return frozenset(decode(item) for item in inner)
    if tag == "$dict":
        return {decode(key): decode(item) for key, item in inner}
    return _CLASSES[tag[1:]].from_state(decode(inner))
