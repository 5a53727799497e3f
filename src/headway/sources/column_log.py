"""A table printed as text: a head with the names, and a line of numbers for each epoch or step.

fastai's `epoch  train_loss  valid_loss  time`, a notebook's `Step  Training Loss`, and
the tables people draw with bars.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Rows
from headway.sources.log.console_lines import glimpse, is_text, lines_of, unlabelled
from headway.sources.log.counters import ABSENT, LARGEST, LARGEST_EPOCH, counter_kind
from headway.sources.log.free_form import weight_of
from headway.sources.log.key_values import Pair, number
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.shapes import whole

FORMAT = "columns"
SAYS = "text table with a head (fastai, notebooks)"

_BAR = re.compile(r"\s*[|│┃]\s*|\t|\s{2,}")
_RULE = re.compile(r"^[\s|│┃+:=─━┄╇┿╪═_-]*$")
_NAME = re.compile(r"[A-Za-z_][\w /.()@%-]{0,60}$")
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:e[-+]?\d{1,4})?|nan|inf)%?$", re.IGNORECASE
)
_CLOCK = re.compile(r"(?:\d{1,3}:)+\d\d$|(?i:no log|none|n/a|-+|—)$")
_WIDEST = 200


def cells(line: str) -> list[str]:
    """The cells of a line, by bars, tabs or two blanks; by any blank where that makes only one."""
    found = [cell for cell in _BAR.split(line.strip()) if cell]
    return found if len(found) > 1 else line.split()


def head(line: str) -> list[str] | None:
    """The names of a head: something that counts, and something that is measured."""
    names = cells(line)
    if not 2 <= len(names) <= _WIDEST or not all(_NAME.match(name) for name in names):
        return None
    if counter_kind(names[0]) == 99 or not any(weight_of(name) == 2 for name in names[1:]):
        return None
    return names


def numbers(line: str, names: list[str]) -> list[Pair] | None:
    """The numbers under a head; a clock or a dash is none."""
    found = cells(line)
    if len(found) != len(names):
        found = line.replace("|", " ").split()
    if len(found) != len(names) or not _NUMBER.match(found[0]):
        return None
    if not all(_NUMBER.match(cell) or _CLOCK.match(cell) for cell in found):
        return None
    return [
        Pair(name, number(cell.rstrip("%")), None, True, cell, at)
        for at, (name, cell) in enumerate(zip(names, found, strict=True))
        if _NUMBER.match(cell)
    ]


def recognise(sample: Sample) -> float:
    if not is_text(sample):
        return 0.0
    names: list[str] | None = None
    rows = 0
    looked = glimpse(sample)
    for _, line in looked:
        names = head(line) or names
        if names and numbers(line, names):
            rows += 1
    return 0.35 + 0.3 * rows / len(looked) if rows else 0.0


def read(path: Path) -> Log:
    rows = Rows(FORMAT, path)
    names: list[str] | None = None
    for plain in lines_of(path):
        rows.lines += 1
        line, _ = unlabelled(plain)
        found = numbers(line, names) if names else None
        if found is None:
            names = head(line) or names
            if not _RULE.match(line):
                rows.tell(line)
            continue
        rows.used += 1
        first, *others = found
        epochs = counter_kind(first.name) == -1
        rows.add(
            rows.values(others),
            whole(first.value, LARGEST_EPOCH) if epochs else ABSENT,
            ABSENT if epochs else whole(first.value, LARGEST),
            ABSENT,
        )
    return rows.log()
