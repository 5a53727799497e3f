"""Columns along the `rank` axis: one value for each process of a distributed run.

A position on the axis is the rank. Every rank has the whole column, so the records of one rank are
enough to judge all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from headway.core.facts import say_list
from headway.core.records import StepRecord


def values_by_rank(record: StepRecord, name: str) -> dict[int, float]:
    """The finite values of a column, by rank; empty if the step does not have it."""
    column = record.columns.get(name)
    if column is None:
        return {}
    return {rank: value for rank, value in column.items() if math.isfinite(value)}


def checksums_by_rank(record: StepRecord, name: str) -> dict[int, float]:
    """A column of checksums, by rank. 0 marks a rank without a checksum."""
    return {rank: value for rank, value in values_by_rank(record, name).items() if value}


def group_ranks_by_value(values: dict[int, float]) -> list[list[int]]:
    """The ranks grouped by their value: the largest group first, then by the lowest rank."""
    groups: dict[float, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def say_ranks(ranks: Collection[int]) -> str:
    """`rank 3`; `ranks 3, 5, 8 and 4 more`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {say_list(sorted(ranks))}"
