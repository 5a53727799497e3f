"""Judges the names in a pickle: known data, unknown, or code that loading would run.

*Dangerous*: a function that runs commands, evaluates text, opens files or uses the network, however
it is reached. In the standard library that is everything not known to be plain data. *Known*: the
classes that frameworks put into checkpoints. *Unknown*: a class of the user; it is only listed.
"""

from __future__ import annotations

from typing import Any, Literal

from headway.checkpoints.pickle_names import (
    CODE_LIBRARIES,
    CODE_NAMES,
    DATA_MODULES,
    DATA_NAMES,
    KNOWN_PACKAGES,
    NOT_DATA,
    RISKY_MODULES,
    STDLIB_MODULES,
    TYPE_TAGS,
)
from headway.checkpoints.pickle_values import Global, Loaded, Stub

Verdict = Literal["known", "unknown", "dangerous"]


def verdict(wanted: Global) -> Verdict:
    """The verdict on a requested name."""
    module, name = wanted.module, wanted.name
    top = module.partition(".")[0]
    parts = name.split(".")
    whole = f"{module}.{name}"
    if module == "copyreg" and name.startswith("extension "):
        return "dangerous"
    if any(part in CODE_NAMES for part in parts):
        return "dangerous"
    if module == TYPE_TAGS and name.startswith(("build_", "restore_type_tag")):
        return "known"
    if any(
        whole == prefix or whole.startswith((prefix + ".", prefix if prefix[-1] == "_" else "\0"))
        for prefix in CODE_LIBRARIES
    ):
        return "dangerous"
    # `torch.serialization` + `os.system`: a module reached through another.
    for at in range(len(parts) - 1):
        if _stdlib(".".join(parts[:1]), ".".join(parts[1:])) == "dangerous":
            return "dangerous"
        if parts[at] in RISKY_MODULES:
            return "dangerous"
    known = _stdlib(module, name)
    if known is not None:
        return known
    return "known" if top in KNOWN_PACKAGES else "unknown"


def _stdlib(module: str, name: str) -> Verdict | None:
    """The verdict on a name of the standard library; None for other names."""
    top = module.partition(".")[0]
    if top not in STDLIB_MODULES:
        return None
    first = name.partition(".")[0]
    if (module, name) in NOT_DATA or (module, first) in NOT_DATA:
        return "dangerous"
    if module in DATA_MODULES or (module, first) in DATA_NAMES:
        return "known"
    if module == "builtins" and first.endswith(("Error", "Exception", "Warning", "Interrupt")):
        return "known"
    return "dangerous"


def judge_pickle(loaded: Loaded) -> tuple[dict[str, str], list[str]]:
    """(dangerous names with the arguments of their call, unknown names)."""
    dangerous: dict[str, str] = {}
    unknown: list[str] = []
    for wanted in loaded.requested:
        found = verdict(wanted)
        if found == "dangerous":
            dangerous[str(wanted)] = _describe_arguments(loaded.calls.get(wanted, ()))
        elif found == "unknown":
            unknown.append(str(wanted))
    for what, arguments in loaded.called:
        # The result of a call is called: no framework writes that.
        dangerous.setdefault(f"a call of {what}", _describe_arguments(arguments))
    return dangerous, unknown


def _describe_arguments(arguments: tuple[Any, ...]) -> str:
    texts = []
    for argument in arguments[:3]:
        if isinstance(argument, (str, bytes, int, float)):
            texts.append(repr(argument[:80] if isinstance(argument, (str, bytes)) else argument))
        elif isinstance(argument, (Global, Stub)):
            texts.append(f"{argument.module}.{argument.name}"[:80])
        else:
            texts.append("…")
    return ", ".join(texts)
