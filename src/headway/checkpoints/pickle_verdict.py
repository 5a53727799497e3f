"""Judges the names in a pickle: known to build data, unknown, or known to run code.

Only what is on the allowlist is *known*. *Dangerous* is what runs commands, evaluates text, opens
files or uses the network, however it is reached; in the standard library that is nearly all the
rest. Everything else is *unknown*: a class of the user, or code that was not reviewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, Literal

from headway.checkpoints.pickle_allowlist import is_allowed, is_class_name, may_be_called
from headway.checkpoints.pickle_names import (
    CODE_LIBRARIES,
    CODE_NAMES,
    DATA_MODULES,
    RISKY_MODULES,
    STDLIB_MODULES,
)
from headway.checkpoints.pickle_values import Global, Loaded, Stub

Verdict = Literal["known", "unknown", "dangerous"]
MAX_ARGUMENT_LENGTH = 80


def verdict(wanted: Global) -> Verdict:
    """The verdict on a requested name."""
    module, name = wanted.module, wanted.name
    if is_allowed(module, name):
        return "known"
    if module == "copyreg" and name.startswith("extension "):
        return "dangerous"
    parts = name.split(".")
    if any(part in CODE_NAMES or part.lstrip("_") in RISKY_MODULES for part in parts):
        return "dangerous"
    whole = f"{module}.{name}"
    if any(_starts_with(whole, prefix) for prefix in CODE_LIBRARIES):
        return "dangerous"
    if module.partition(".")[0] in STDLIB_MODULES:
        return "unknown" if module in DATA_MODULES and is_class_name(name) else "dangerous"
    return "unknown"


def _starts_with(whole: str, prefix: str) -> bool:
    return whole == prefix or whole.startswith(prefix if prefix[-1] == "_" else f"{prefix}.")


_trusted: ContextVar[tuple[str, ...]] = ContextVar("trusted names", default=())


@contextmanager
def trusting(names: Iterable[str]) -> Iterator[None]:
    """Inside, these names are not reported: `package.module.Class`, or with a `*`."""
    before = _trusted.set(tuple(names))
    try:
        yield
    finally:
        _trusted.reset(before)


def is_trusted(name: str) -> bool:
    """Whether the user allows a name."""
    return any(name == trusted or fnmatchcase(name, trusted) for trusted in _trusted.get())


def judge_pickle(loaded: Loaded) -> tuple[dict[str, str], list[str]]:
    """(dangerous names with the arguments of their call, unknown names)."""
    dangerous: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for wanted in loaded.requested:
        found = verdict(wanted)
        if found == "known" or is_trusted(str(wanted)):
            continue
        if found == "dangerous":
            dangerous[str(wanted)] = _describe_arguments(loaded.calls.get(wanted, ()))
        else:
            unknown[str(wanted)] = None
    for called, arguments in loaded.calls.items():
        name = str(called)
        data = may_be_called(called.module, called.name, arguments)
        if name not in dangerous and not data and not is_trusted(name):
            unknown[name] = None
    for what, arguments in loaded.called:
        # No framework calls the result of a call, or changes what it has imported.
        dangerous.setdefault(what, _describe_arguments(arguments))
    unknown.update(dict.fromkeys(loaded.doubtful))
    return dangerous, list(unknown)


def _describe_arguments(arguments: tuple[Any, ...]) -> str:
    texts = []
    for argument in arguments[:3]:
        if isinstance(argument, (str, bytes)):
            texts.append(repr(argument[:MAX_ARGUMENT_LENGTH]))
        elif isinstance(argument, float) or (
            isinstance(argument, int) and argument.bit_length() < 64
        ):
            texts.append(repr(argument))
        elif isinstance(argument, (Global, Stub)):
            texts.append(f"{argument.module}.{argument.name}"[:MAX_ARGUMENT_LENGTH])
        else:
            texts.append("…")
    return ", ".join(texts)
