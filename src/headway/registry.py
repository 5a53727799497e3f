"""Finds the checks: built-in ones by file name, those of other packages by entry point.

A check needs no registration. The built-in ones are the modules
`headway.checks.<family>.hdNNN_name`; another package adds its own with an entry point in the group
`headway.checks` that names a `Check` class.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import headway.checks
from headway.config import Settings, nearest_name, reject_unknown_keys, reject_wrong_types
from headway.core.check import Check
from headway.errors import InternalError, UsageError

ENTRY_POINTS = "headway.checks"
LOOK_ALIKES = str.maketrans("OILSBZ", "011582")
logger = logging.getLogger(__name__)


@cache
def modules() -> dict[str, str]:
    """Code → module name of every built-in check, without importing any of them."""
    found = {}
    # Not `walk_packages`: it imports every family that it walks into.
    for folder in headway.checks.__path__:
        for family in pkgutil.iter_modules([folder]):
            if not family.ispkg:
                continue
            for module in pkgutil.iter_modules([str(Path(folder, family.name))]):
                prefix, _, rest = module.name.partition("_")
                if prefix.startswith("hd") and prefix[2:].isdigit() and rest:
                    path = f"{headway.checks.__name__}.{family.name}.{module.name}"
                    found[prefix.upper()] = path
    return dict(sorted(found.items()))


@cache
def find(code: str) -> type[Check] | None:
    """The check of a code (or of a name such as `loss-spike`). Imports that one file only."""
    wanted = code.upper()
    for known, module in modules().items():
        if known == wanted or _name_in(module) == code.lower():
            return _class_in(module)
    matches = (item for item in _entry_point_checks() if wanted == item.code or code == item.name)
    return next(matches, None)


def get(code: str) -> type[Check]:
    """The check of a code or name. Raises UsageError with a suggestion if there is none."""
    check = find(code)
    if check is not None:
        return check
    hint = suggest(code, modules(), map(_name_in, modules().values()))
    raise UsageError(f"there is no check {code!r}; {hint}")


def suggest(word: str, codes: Iterable[str], names: Iterable[str]) -> str:
    """What to try instead of an unknown code or name."""
    near = nearest_name(word.lower(), names) or _slip(word.upper(), list(codes))
    return f"did you mean {near}?" if near else "`headway checks` lists them all"


def _slip(word: str, codes: Iterable[str]) -> str | None:
    """The only code that differs from `word` by a typing error, or None.

    A letter typed for a digit, two characters swapped, one missing, or one extra. A wrong digit
    does not identify a code: HD999 is as near to HD909 as to HD919.
    """
    swapped = (word[:at] + word[at : at + 2][::-1] + word[at + 2 :] for at in range(len(word)))
    tried = {word[:2] + word[2:].translate(LOOK_ALIKES), *swapped, *_shortened(word)}
    found = [code for code in codes if code in tried or word in _shortened(code)]
    return found[0] if len(found) == 1 else None


def _shortened(word: str) -> set[str]:
    """The word without one of its characters."""
    return {word[:at] + word[at + 1 :] for at in range(len(word))}


def _name_in(module: str) -> str:
    return module.partition("_")[2].replace("_", "-")


@cache
def all_checks() -> tuple[type[Check], ...]:
    """Every check, built-in and installed, by code."""
    checks = [get(code) for code in modules()] + list(_entry_point_checks())
    return tuple(sorted(checks, key=lambda check: check.code))


def chosen(settings: Settings) -> list[Check]:
    """The checks that the settings select, ready to run with the limits of the settings."""
    return [check(limits) for check, limits in chosen_limits(settings).items()]


def chosen_limits(settings: Settings) -> dict[type[Check], Mapping[str, Any]]:
    """The checks that the settings select, each with its limits from the settings."""
    reject_unknown_keys(
        settings.limits, (check.code for check in all_checks()), origin="limits in the settings"
    )
    return {
        check: _limits_of(check, settings)
        for check in all_checks()
        if settings.wants(check.code)
        and check.status != "removed"
        and (check.status != "preview" or settings.named(check.code))
    }


def _limits_of(check: type[Check], settings: Settings) -> Mapping[str, Any]:
    limits = settings.limits.get(check.code, {})
    reject_wrong_types(limits, check.Limits, origin=f"limits of {check.code} in the settings")
    return limits


def _class_in(module_name: str) -> type[Check]:
    module = importlib.import_module(module_name)
    classes = [
        item
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, Check) and item.__module__ == module_name
    ]
    if len(classes) != 1:
        raise InternalError(f"{module_name} must contain exactly one check, found {len(classes)}")
    return classes[0]


@cache
def _entry_point_checks() -> tuple[type[Check], ...]:
    from importlib.metadata import entry_points  # costs as much as all the rest of `explain`

    found = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            check = entry.load()
            problem = _why_unfit(check)
        except Exception as error:  # a broken package must not end a training
            problem = f"{type(error).__name__}: {error}"
        if problem is None:
            found.append(check)
        else:
            logger.warning(
                "headway: the check %s (%s) is ignored: %s", entry.name, entry.value, problem
            )
    return tuple(found)


def _why_unfit(check: Any) -> str | None:
    """Why the object of an entry point cannot be used as a check; None if it can."""
    if not (inspect.isclass(check) and issubclass(check, Check)):
        return "it is not a subclass of headway.core.check.Check"
    if check.code.upper().startswith("HD"):
        return f"codes that start with HD are reserved for headway, and its code is {check.code}"
    return None
