"""The problems of an interpreted pickle and of the pickles beside it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.checkpoints import checkpoint_info
from headway.checkpoints.checkpoint_info import Problem
from headway.checkpoints.pickle_verdict import judge_pickle

if TYPE_CHECKING:
    from headway.checkpoints.formats.torch_file import OpenedPickle

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
