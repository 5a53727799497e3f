"""`trainer_state.json` of the Hugging Face Trainer.

It is written with every checkpoint; what its numbers mean is told in `log/trainer_signals.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.table import Table
from headway.sources.log.trainer_signals import describe_trainer
from headway.sources.log.values import number, plain_settings, whole
from headway.sources.log.whole_json import BAD_JSON, Elements, whole_text

FORMAT = "hf-trainer"
SAYS = "Hugging Face trainer_state.json"

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SUMMARY = "train_runtime"
"""The last row of a run that ended: means of the whole of it, no point of a curve."""
_FACTS = (
    "max_steps",
    "num_train_epochs",
    "global_step",
    "epoch",
    "logging_steps",
    "save_steps",
    "eval_steps",
    "train_batch_size",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)


def recognise(sample: Sample) -> float:
    """Sure of an object that has a `log_history`."""
    text = sample.text.lstrip("\ufeff \t\r\n")
    return 1.0 if text.startswith("{") and _HISTORY.search(text) else 0.0


def read(path: Path) -> Log:
    """The whole of it."""
    text = whole_text(path, SAYS)
    begin = _HISTORY.search(text)
    log = Log(FORMAT, path, Table())
    rows = Elements(text, begin.end() if begin else len(text))
    try:
        if begin:
            add_rows(log, rows)
        state = json.loads(text[: begin.end()] + text[rows.end :] if begin else text)
    except BAD_JSON as error:
        raise UnreadableInput(f"{path} is no whole {SAYS}: {error}") from error
    if not isinstance(state, dict) or state.get("log_history") != []:
        raise UnreadableInput(f"{path} is no {SAYS}: it has no list `log_history`")
    log.facts = {**_facts(state, _FACTS), **log.facts}
    describe_trainer(log)
    return log


def add_rows(log: Log, history: Iterable[Any]) -> None:
    """Rows as the Trainer logs them, wherever they were found."""
    for row in history:
        log.lines += 1
        if not isinstance(row, dict):
            continue
        if _SUMMARY in row:
            log.facts.update(_facts(row, [key for key in row if key not in ("step", "epoch")]))
            log.used += 1
            continue
        step = whole(row.get("step"))
        values = {}
        for name, value in row.items():
            found = number(value) if name != "step" else None
            if found is not None:
                values[name] = found
        if step is not None and values.keys() - {"epoch"}:
            log.table.add(step, values)
            log.used += 1


def _facts(state: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return plain_settings({name: state[name] for name in names if name in state})
