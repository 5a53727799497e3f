"""nanotron: `iteration: 10 / 100 | consumed_tokens: 1.2M | … | lm_loss: 10.2 | lr: 1e-05`.

Numbers are printed for people (`3.4K`), with three digits.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "nanotron"
SAYS = "nanotron console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(r"\biteration: (?P<step>\d{1,15}) / (?P<of>\d{1,15}) (?=\| )"),
    human=True,
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?:lm_loss|grad_norm)$", scope="global")
    return log
