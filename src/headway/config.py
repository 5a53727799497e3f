"""Settings from pyproject.toml, a TOML file or the environment; suggestions for unknown names."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headway.errors import SettingsError

# Settings: which checks run, with which limits, under which policy.

# Read from `[tool.headway]` in the nearest `pyproject.toml`, or from a separate TOML file:

#     select = ["HD1", "HD201"]          # codes or prefixes; default: all
#     ignore = ["HD804"]
#     fail-on = "warning"                # error (default) | warning | never
#     allow = ["my_package.Config"]      # names in pickles that `headway scan` accepts
#     baseline = "headway-baseline.json" # findings that were known before

#     [limits.HD103]                     # the numbers `headway explain HD103` lists
#     sigmas = 10

#     [policy]
#     skips-in-a-row = 50

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "HEADWAY_"
KEYS = {
    "select": "codes or code prefixes of the checks to run, separated by commas",
    "ignore": "codes or code prefixes of the checks to skip, in addition to those of the file",
    "fail-on": "`error`, `warning` or `never`",
    "limits": "a limit of a check",
    "policy": "a field of the policy",
    "allow": "names in pickles that `headway scan` accepts, separated by commas",
    "baseline": "the file of findings that were known before",
}
"""Every setting; the variable of the environment that sets it is derived from the name."""
_TABLES = {"limits": "HD207_PATIENCE", "policy": "SKIPS_IN_A_ROW"}
"""Settings that are tables, each with an example of a variable."""
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
    baseline: str = ""
    """The file of findings that were known before; empty for none."""

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
        reject_unknown_keys(data, KEYS, origin=origin)
        limits = _table(data, "limits", origin)
        policy = _table(data, "policy", origin)
        chosen: dict[str, Any] = {
            "select": _codes(data, "select", origin),
            "ignore": _codes(data, "ignore", origin),
            "limits": {code: _table(limits, code, f"{origin}: limits") for code in limits},
            "policy": {key.replace("-", "_"): value for key, value in policy.items()},
            "allow": _strings(data, "allow", origin, "names such as ['my_package.Config']"),
            "baseline": _text(data, "baseline", origin),
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
        """The settings of a file, or those found upward from `start`, or the defaults; variables
        of the environment override them.

        `distrust(file)`: whether a file that was found and not given is passed over.
        """
        return cls._load_file(path, start, distrust).with_environment(os.environ)

    def with_environment(self, environ: Mapping[str, str]) -> Settings:
        """The settings, overridden by variables such as `HEADWAY_FAIL_ON`.

        As on the command line, a selection replaces the selection and the ignored checks of the
        file, and ignored checks are added. An empty variable is the same as none.
        """
        given = _environment_values(environ)
        if not given:
            return self
        origin = f"environment variables {PREFIX}…"
        new = Settings.from_mapping(given, origin=origin)
        limits = {code: dict(values) for code, values in self.limits.items()}
        for code, values in new.limits.items():
            limits[code] = {**limits.get(code, {}), **values}
        return Settings(
            select=new.select or self.select,
            ignore=(*(() if new.select else self.ignore), *new.ignore),
            fail_on=new.fail_on if "fail-on" in given else self.fail_on,
            limits=limits,
            policy={**self.policy, **new.policy},
            allow=new.allow or self.allow,
            baseline=new.baseline or self.baseline,
        )

    @classmethod
    def _load_file(
        cls,
        path: Path | None,
        start: Path | None,
        distrust: Callable[[Path], bool] | None,
    ) -> Settings:
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
        settings = cls.from_mapping(data, origin=str(path))
        if not settings.baseline:
            return settings
        return replace(settings, baseline=str(path.parent / settings.baseline))


def environment_variables() -> dict[str, str]:
    """Every variable that sets something, with what it means; tables with one example each."""
    names = {}
    for key, meaning in KEYS.items():
        name = PREFIX + key.upper().replace("-", "_")
        names[f"{name}_{_TABLES[key]}" if key in _TABLES else name] = meaning
    return names


def _environment_values(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the environment, as TOML would give them."""
    given: dict[str, Any] = {}
    for key in KEYS:
        name = PREFIX + key.upper().replace("-", "_")
        if key in _TABLES:
            for variable, text in environ.items():
                if variable.startswith(f"{name}_") and text.strip():
                    _put(given, key, variable[len(name) + 1 :], _toml_value(text))
            continue
        text = environ.get(name, "").strip()
        if text:
            listed = key in ("select", "ignore", "allow")
            given[key] = [word for word in _words(text) if word] if listed else text
    return given


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _put(given: dict[str, Any], key: str, rest: str, value: Any) -> None:
    """`SKIPS_IN_A_ROW` is a key of the policy, `HD207_PATIENCE` a limit of a check."""
    table = given.setdefault(key, {})
    if key == "limits":
        code, _, rest = rest.partition("_")
        table = table.setdefault(code.upper(), {})
    table[rest.lower()] = value


def _toml_value(text: str) -> Any:
    """A number or a truth value if the text is one in TOML; the text otherwise."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


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


def _text(data: Mapping[str, Any], key: str, origin: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise SettingsError(f"{origin}: {key} must be text: got {value!r}")
    return value


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
