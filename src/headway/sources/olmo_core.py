"""OLMo-core (and OLMo): `[step=10/100,epoch=1,eta=0:01:00]`, and under it a line for each number:
`    train/CE loss=10.93`, `    optim/LR (group 0)=0.0001`."""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, recognised, signal
from headway.sources.log.free_form import read_free
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "olmo-core"
SAYS = "OLMo-core console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"\[step=[\d,]{1,15}(?:/[\d,]{1,15})?(?:,epoch=\d{1,9})?(?:,eta=[^\]]{0,60})?\]\s*$"
    ),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = read_free(path, FORMAT, started=True)
    signal(log, r"^(?:train|optim)/", scope="global")
    return log
