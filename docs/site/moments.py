"""When a check can run: from what it needs, and from what each kind of evidence holds.

S  the set-up, looked at before a step is made       G  a log alone
P  a few steps under `headway check`                C  checkpoints alone
L  a live run, under the guard
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from headway.core.check import Check
from headway.core.records import EventRecord, Header, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import Signal
from headway.logs.log_names import _EXACT

MOMENTS = {
    "S": "the set-up, before the first step",
    "P": "a few steps under `headway check`",
    "L": "a live run under the guard",
    "G": "a log alone",
    "C": "checkpoints alone",
}

OBJECTS = [
    "anomaly-mode",
    "device-mismatch",
    "dropout",
    "freeze-attempt",
    "frozen",
    "initial-weights",
    "linear-chain",
    "optimizer",
    "optimizer-coverage",
    "parameters",
    "spectral-norm",
    "transfer",
    "unregistered",
]
"""Facts found by looking at objects: models, optimizers, loaders. The others want steps."""
LIVE_FACTS = ("parameters", "precision")
"""Facts that the guard gathers as well; all others are those of `headway check`."""
LIVE_ROLES = ("weight", "buffer", "moment", "input")
SAVED_ROLES = ("weight", "buffer", "moment")

SIGNALS_PAGE = Path(__file__).parents[1] / "signals.md"
_ROW = re.compile(r"^\| (?P<names>`[^|]+`) \|.*\| (?P<writes>[^|]+) \|$")


def moments(check: type[Check]) -> str:
    """The letters of a check, in the order of `MOMENTS`."""
    return "".join(letter for letter in MOMENTS if _RULES[letter](check))


def _has_steps(check: type[Check], signals: frozenset[str]) -> bool:
    needs = check.needs
    if StepRecord not in needs.kinds or (needs.topics and not (needs.signals or needs.any_of)):
        return False  # steps only help it; it judges by facts
    known = Header(source="any", signals=dict.fromkeys(signals, Signal()))
    return needs.unmet(known) is None


def _set_up(check: type[Check]) -> bool:
    looks = SetupRecord in check.needs.kinds and StepRecord not in check.needs.kinds
    return looks and any(topic in OBJECTS for topic in check.needs.topics)


def _preflight(check: type[Check]) -> bool:
    facts = SetupRecord in check.needs.kinds and bool(check.needs.topics)
    return facts or _live(check) or _has_steps(check, _written("live") | _written("preflight"))


def _live(check: type[Check]) -> bool:
    needs = check.needs
    tensors = TensorRecord in needs.kinds and not needs.checkpoints
    return (
        _has_steps(check, _written("live"))
        or (tensors and any(role in LIVE_ROLES for role in needs.roles))
        or (SetupRecord in needs.kinds and any(topic in LIVE_FACTS for topic in needs.topics))
        or (needs.kinds == (EventRecord,) and not needs.checkpoints)
    )


def _log(check: type[Check]) -> bool:
    named = {name.name for name in _EXACT.values()} | {"loss/any", "clip_coef"}
    return _has_steps(check, frozenset(named))


def _saved(check: type[Check]) -> bool:
    needs = check.needs
    tensors = TensorRecord in needs.kinds and any(role in SAVED_ROLES for role in needs.roles)
    return tensors or bool(needs.checkpoints)


_RULES = {"S": _set_up, "P": _preflight, "L": _live, "G": _log, "C": _saved}


def _written(where: str) -> frozenset[str]:
    """The signals that the guard writes, or `headway check` alone, by docs/signals.md."""
    return frozenset(name for name, by in _writers().items() if by == where)


@cache
def _writers() -> dict[str, str]:
    """Signal → who writes it: `live`, `preflight` or `never`."""
    writers: dict[str, str] = {}
    for line in SIGNALS_PAGE.read_text(encoding="utf-8").splitlines():
        row = _ROW.match(line)
        if row is None:
            continue
        said = row["writes"]
        like = re.match(r"as `([^`]+)`", said)
        if like:
            by = writers.get(like[1], "live")
        else:
            by = next((word for word in ("preflight", "never") if said.startswith(word)), "live")
        for name in re.findall(r"`([^`]+)`", row["names"]):
            writers[name.replace("<component>", "any")] = by
    return writers
