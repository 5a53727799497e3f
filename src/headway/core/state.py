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
M = TypeVar("M", bound=type[Restorable])


def register_state_class(cls: M) -> M:
    """Class decorator: let `encode` and `decode` handle instances of this class."""
    _CLASSES[cls.__name__] = cls
    return cls


def encode(value: Any) -> Any:
    """The value as JSON data. Raises TypeError for a type that could not be read back."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        number = encode_number(value)
        return number if isinstance(number, float) else {"$number": number}
    # Exactly these types: a defaultdict would be restored as a dict, and fail only after a resume.
    if type(value) is list:
        if _FLOATS.issuperset(map(type, value)) and all(map(isfinite, value)):
            return value.copy()  # as in every window
        return [encode(item) for item in value]
    if type(value) is tuple:
        return {"$tuple": [encode(item) for item in value]}
    if type(value) in (set, frozenset):
        return {"$" + type(value).__name__: [encode(item) for item in sorted(value)]}
    if type(value) is dict:
        return {"$dict": [[encode(key), encode(item)] for key, item in value.items()]}
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
