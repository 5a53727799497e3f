"""What a pickle holds where nothing of it is run: names, stubs, and where its bytes are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KEY_DEPTH = 8


class Damaged(Exception):
    """The pickle ends early or makes no sense."""


class TooMuch(Damaged):
    """The pickle asks for more than a checkpoint would."""


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function by its name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Stub:
    """An object of a class that was not looked up."""

    module: str
    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: dict[Any, Any] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """What its state says, by name."""
        found: dict[str, Any] = {}
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for state in states[:2]:
            if isinstance(state, dict):
                found.update((key, value) for key, value in state.items() if isinstance(key, str))
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


class Located(bytes):
    """Bytes that remember where in the stream they were."""

    at: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes too many to be read: where they are."""

    at: int
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass
class Loaded:
    """A pickle that was gone through."""

    value: Any
    end: int
    """Where the stream ended, after its last opcode."""
    requested: list[Global] = field(default_factory=list)
    """Every name the stream asked for, in order, once."""
    called: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Calls of what is not a plain name: `(what, arguments)`."""
    calls: dict[Global, tuple[Any, ...]] = field(default_factory=dict)
    """The names that would be called, and the first call's arguments."""
    damage: str | None = None
    """Why it could not be gone through to the end."""


def hashable(value: Any, depth: int = 0) -> bool:
    """Whether it may be a key: no deep nests, whose hashing would overflow the stack."""
    if isinstance(value, (tuple, frozenset)):
        if isinstance(value, frozenset):
            return True
        return depth < KEY_DEPTH and len(value) < 64 and all(hashable(v, depth + 1) for v in value)
    return not isinstance(value, (list, dict, set, bytearray)) and value.__hash__ is not None
