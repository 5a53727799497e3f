"""fairseq: `| epoch 001:    100 / 2000 loss=10.2, num_updates=100, lr=1e-05, gnorm=2.1, …`, and
with `--log-format json` `{"epoch": 1, "update": 0.05, "loss": "10.2", …, "num_updates": "100", …}`.

Loss and norm are means over the updates since the last line; the step is `num_updates`.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "fairseq"
SAYS = "fairseq console log"
_PLACE = r"^\W{0,4}epoch \d{1,9}:\s{1,9}\d{1,15} / \d{1,15} "
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        rf"{_PLACE}(?=.{{0,4000}}?\bnum_updates=(?P<known>\d{{1,15}}))"
        r"|^\W{0,4}epoch (?P<epoch>\d{1,9}):\s{1,9}(?P<count>\d{1,15}) / (?P<of>\d{1,15}) "
        r"(?=\w{1,40}=)"
        r"|^\W{0,4}\{\"epoch\": \d{1,9}, \"update\": "
        r"(?=.{0,4000}?\"num_updates\": \"(?P<json>\d{1,15})\")"
    ),
    evaluation=re.compile(
        r"valid on '[^']{0,80}' subset \| (?=(?:.{0,4000}?\bnum_updates (?P<step>\d{1,15}))?)"
    ),
    drop=frozenset({"num_updates", "train_wall", "wall", "epoch", "update"}),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?!eval/)(?:.*loss|gnorm|ppl)$", fold="mean", scope="global")
    signal(log, r"^loss_scale$")
    return log
