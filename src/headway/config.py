"""Settings from pyproject.toml or a TOML file, and suggestions for names that do not exist."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headway.errors import SettingsError

# Settings: which checks run, with which limits, under which policy.

# Read from `[tool.headway]` in the nearest `pyproject.toml`, or from a separate TOML file:

#     select = ["HD1", "HD201"]          # codes or prefixes; default: all
#     ignore = ["HD804"]
#     fail-on = "warning"                # error (default) | warning | never
#     allow = ["my_package.Config"]      # names in pickles that `headway scan` accepts

#     [limits.HD103]                     # the numbers `headway explain HD103` lists
#     sigmas = 10

#     [policy]
#     skips-in-a-row = 50

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = ("select", "ignore", "fail-on", "limits", "policy", "allow")
_FAIL_ON = ("error", "warning", "never")
_ACCEPTED_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
_TYPE_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the user; the defaults are right for most runs."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    """Names in pickles that the user trusts: `my_package.Config`, `my_package.*`."""

    def __post_init__(self) -> None:
        if self.fail_on not in _FAIL_ON:
            raise SettingsError(
                f"fail-on must be one of {', '.join(_FAIL_ON)}: got {self.fail_on!r}"
            )

    def wants(self, code: str) -> bool:
        """Whether the check with this code runs."""
        chosen = not self.select or any(code.startswith(prefix) for prefix in self.select)
        return chosen and not any(code.startswith(prefix) for prefix in self.ignore)

    def named(self, code: str) -> bool:
        """Whether the user selected exactly this check, as checks in preview require."""
        return code in self.select

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], *, origin: str) -> Settings:
        """Settings from parsed TOML. Raises SettingsError naming `origin` and the key."""
        reject_unknown_keys(data, _KEYS, origin=origin)
        limits = _table(data, "limits", origin)
        policy = _table(data, "policy", origin)
        chosen: dict[str, Any] = {
            "select": _codes(data, "select", origin),
            "ignore": _codes(data, "ignore", origin),
            "limits": {code: _table(limits, code, f"{origin}: limits") for code in limits},
            "policy": {key.replace("-", "_"): value for key, value in policy.items()},
            "allow": _strings(data, "allow", origin, "names such as ['my_package.Config']"),
        }
        try:
            return cls(fail_on=data.get("fail-on", "error"), **chosen)
        except SettingsError as error:
            raise SettingsError(f"{origin}: {error}") from None

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        *,
        start: Path | None = None,
        distrust: Callable[[Path], bool] | None = None,
    ) -> Settings:
        """The settings of a file, or those found upward from `start`, or the defaults.

        `distrust(file)`: whether a file that was found and not given is passed over.
        """
        if path is not None:
            return cls._read(path, required=True)
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            found = folder / "pyproject.toml"
            if found.is_file() and not (distrust is not None and distrust(found)):
                return cls._read(found, required=False)
        return cls()

    @classmethod
    def _read(cls, path: Path, *, required: bool) -> Settings:
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            if not required:  # a broken pyproject.toml of another project is not our concern
                return cls()
            raise SettingsError(f"cannot read settings from {path}: {error}") from error
        if path.name == "pyproject.toml":
            tool = data.get("tool")
            if not isinstance(tool, dict) or "headway" not in tool:
                return cls()
            data = _table(tool, "headway", f"{path}: tool")
        return cls.from_mapping(data, origin=str(path))


def reject_unknown_keys(data: Mapping[str, Any], known: Iterable[str], *, origin: str) -> None:
    """Raise SettingsError for the first unknown key, with the nearest known one."""
    names = list(known)
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise SettingsError(f"{origin}: unknown setting {key!r}; {hint}")


def reject_wrong_types(data: Mapping[str, Any], shape: Any, *, origin: str) -> None:
    """Raise SettingsError for a key that the dataclass does not have, or a value of a wrong
    type."""
    reject_unknown_keys(data, [item.name for item in fields(shape)], origin=origin)
    for item in fields(shape):
        wanted = item.type if isinstance(item.type, str) else item.type.__name__
        if (
            item.name in data
            and wanted in _ACCEPTED_TYPES
            and type(data[item.name]) not in _ACCEPTED_TYPES[wanted]
        ):
            raise SettingsError(
                f"{origin}: {item.name} must be {_TYPE_NAMES[wanted]}: got {data[item.name]!r}"
            )


def _codes(data: Mapping[str, Any], key: str, origin: str) -> tuple[str, ...]:
    codes = _strings(data, key, origin, "codes such as ['HD1', 'HD204']")
    return tuple(item.upper() for item in codes)


def _strings(data: Mapping[str, Any], key: str, origin: str, what: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{origin}: {key} must be a list of {what}")
    return tuple(value)


def _table(data: Mapping[str, Any], key: str, origin: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise SettingsError(f"{origin}: {key} must be a table")
    return value


# Suggestions for a name that does not exist.

LEAST_SIMILARITY = 0.6


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """The most similar existing name, or None. Letters at the same position count: HD101 is nearer
    to HD1O1 than HD311 is."""

    def likeness(other: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, other, word).ratio()
        return ratio, sum(a == b for a, b in zip(other, word, strict=False))

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= LEAST_SIMILARITY else None
