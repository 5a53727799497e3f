"""NeMo 2: `Training epoch 0, iteration 9/99 | lr: 4.5e-06 | reduced_train_loss: 11.03`.

The loss is of the very step, reduced over all ranks. Where a line has `global_step` it is the step.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "nemo"
SAYS = "NeMo console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"^Training epoch (?P<epoch>\d{1,9}), iteration (?P<step>\d{1,15})/(?P<of>\d{1,15})\s"
        r"(?=\|(?:.{0,2000}?\bglobal_step: (?P<known>\d{1,15})\b)?)"
    ),
    evaluation=re.compile(r"\bValidation: iteration \d{1,15}/\d{1,15}\s(?=\|)"),
    drop=frozenset({"global_step"}),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?:reduced_train_loss|grad_norm)$", scope="global")
    return log
