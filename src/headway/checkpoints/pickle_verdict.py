"""Judges the names in a pickle: known to build data, unknown, or known to run code.

Only what is on the allowlist is *known*. *Dangerous* is what runs commands, evaluates text, opens
files or uses the network, however it is reached; in the standard library that is nearly all the
rest. Everything else is *unknown*: a class of the user, or code that was not reviewed. What a scan
reports of it is put into words here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from headway.checkpoints import checkpoint_info
from headway.checkpoints.checkpoint_info import Problem
from headway.checkpoints.pickle_allowlist import is_allowed, is_class_name, may_be_called
from headway.checkpoints.pickle_names import (
    CODE_LIBRARIES,
    CODE_NAMES,
    DATA_MODULES,
    RISKY_MODULES,
    STDLIB_MODULES,
)
from headway.checkpoints.pickle_values import Global, Loaded, Stub

if TYPE_CHECKING:
    from headway.checkpoints.formats.torch_file import OpenedPickle

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


# The problems of an interpreted pickle and of the pickles beside it, in words.

LISTED = 20
"""Names listed in the facts of a problem."""


def problems_of(opened: OpenedPickle, *, where: str = "") -> tuple[list[Problem], list[str]]:
    """The problems of a pickle, and the unknown classes it names."""
    loaded = opened.loaded
    name = where or str(opened.path)
    if loaded.damage is not None and not any(p.kind == "unreadable" for p in opened.problems):
        message = f"{name}: its pickle is damaged: {loaded.damage}"
        if loaded.not_judged:
            message = f"{name} was not judged: {loaded.damage}"
        opened.problems.append(Problem("unreadable", message, opened.path, {}))
    problems = list(opened.problems)
    dangerous, unknown = judge_pickle(loaded)
    if dangerous:
        message = (
            f"{name} would run code when it is loaded: {_list_calls(dangerous)}; it was not loaded"
        )
        problems.append(Problem("unsafe", message, opened.path, _dangerous_facts(dangerous)))
    problems += _of_others(opened, name, unknown)
    return problems + checkpoint_info.unknown_code(unknown, opened.path, name), unknown


def _of_others(opened: OpenedPickle, name: str, unknown: list[str]) -> list[Problem]:
    """The same for the pickles other than the main one; adds their unknown classes."""
    problems = []
    traps: dict[str, dict[str, str]] = {}
    for member in opened.others:
        dangerous, more = member.judged
        unknown += [name for name in more if name not in unknown]
        if dangerous:
            traps[member.name] = dangerous
    if traps:
        first, dangerous = next(iter(traps.items()))
        further = f", and {len(traps) - 1} more of its members" if len(traps) > 1 else ""
        message = (
            f"{name}: its member {first[:200]!r} would run code when it is unpickled: "
            f"{_list_calls(dangerous)}{further}. "
        )
        reads = f"torch.load reads {opened.main!r}; " if opened.main else ""
        message += f"{reads}headway loaded nothing"
        facts = {
            "members": [member[:200] for member in traps][:LISTED],
            **_dangerous_facts(dangerous),
        }
        problems.append(Problem("unsafe", message, opened.path, facts))
    closed = [member for member in opened.others if member.not_judged]
    if closed:
        one = closed[0]
        what = "could not be examined" if one.loaded is None else "was not judged"
        message = f"{name}: its member {one.name[:200]!r} {what}: {one.not_judged}"
        facts = {"members": [member.name[:200] for member in closed][:LISTED]}
        problems.append(Problem("unreadable", message, opened.path, facts))
    return problems


def _list_calls(dangerous: dict[str, str]) -> str:
    calls = ", ".join(
        f"{key}({value})" if value else key for key, value in list(dangerous.items())[:3]
    )
    return f"{calls} and {len(dangerous) - 3} more" if len(dangerous) > 3 else calls


def _dangerous_facts(dangerous: dict[str, str]) -> dict[str, Any]:
    return {"globals": list(dangerous)[:100], "calls": dict(list(dangerous.items())[:LISTED])}
