"""Logs in which a loss that rises, rests or swings means nothing: several sides work against each
other, or the data change with the policy."""

from __future__ import annotations

import re

from headway.core.records import Header

_SIDES = re.compile(
    r"(^|[_/.])(d|g|disc|gen|dis|discriminator|generator|adv|adversarial|policy|pg|actor|critic|"
    r"value|vf|q|q1|q2|qf|qf1|qf2|td|entropy)([_/.0-9]|$)"
)


def contested(header: Header) -> bool:
    """Whether a log of another tool is that of reinforcement learning or of adversaries."""
    if not header.foreign:
        return False
    return "reward" in header.signals or any(
        name.startswith("loss/") and _SIDES.search(name.removeprefix("loss/"))
        for name in header.signals
    )
