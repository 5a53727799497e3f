"""Beyond 64 ranks the reduction keeps its size, gives the same verdict and names the culprits."""

from __future__ import annotations

import math
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.rank_processes import run_ranks
from support.rank_trainings import listen
from support.strategies import lightly
from torch import nn

import headway
from headway.guard.ranks import rank_table
from headway.guard.ranks.rank_table import MISSING, UNKNOWN, RankField, RankTable, TableLayout
from headway.torch_adapters.process_groups.rank_agreement import HostGroup


def row(**places: float) -> list[float]:
    numbers = [UNKNOWN if slot in MISSING else 0.0 for slot in RankField]
    for name, number in places.items():
        numbers[RankField[name]] = number
    return numbers


def reduce_rows(rows: list[list[float]], turn: int = 0) -> tuple[TableLayout, torch.Tensor]:
    """What an all-reduce over these ranks gives."""
    total = None
    for rank, numbers in enumerate(rows):
        layout = TableLayout(len(rows), rank)
        vector = torch.zeros(layout.floats, dtype=layout.dtype)
        own = layout.row(vector)
        own[:] = torch.tensor(numbers)
        layout.write(vector, own, turn)
        total = vector if total is None else total + vector
    assert total is not None
    return layout, total


def table_of(rows: list[list[float]], turn: int = 0) -> RankTable:
    layout, vector = reduce_rows(rows, turn)
    calls = layout.verdict(vector, sharded=False)["calls"].tolist()
    return RankTable(calls, vector, layout, turn)


def test_the_size_stops_growing_at_64_ranks() -> None:
    sizes = {size: TableLayout(size, 0) for size in (2, 64, 65, 1000, 16_000)}
    assert sizes[2].floats == 2 * len(RankField)
    assert sizes[65].floats == sizes[1000].floats == sizes[16_000].floats
    assert sizes[16_000].floats * 8 < 10_000


@pytest.mark.parametrize("size", [65, 127, 200])
def test_every_rank_gets_a_row_and_rank_0_always_has_one(size: int) -> None:
    layout = TableLayout(size, 0)
    turns = -(-(size - 1) // 63)
    seen: Counter[int] = Counter()
    for turn in range(turns):
        members = layout.members(turn)
        assert members[0] == 0
        assert len(members) <= 64
        seen.update(members)
    assert set(seen) == set(range(size))
    assert layout.members(turns) == layout.members(0)


@lightly
@given(
    st.lists(st.floats(0, 2.0**99, width=32), min_size=66, max_size=80),
    st.floats(2.0**-99, 2.0**99, width=32),
)
def test_the_mean_of_equal_norms_is_exact(losses: list[float], norm: float) -> None:
    rows = [row(LOSS=loss, LOSSES=1, PLAIN=norm) for loss in losses]
    layout, vector = reduce_rows(rows)
    verdict = layout.verdict(vector, sharded=False)
    assert float(verdict["total"]) == norm
    assert float(verdict["losses"]) == len(losses)


def test_idle_ranks_do_not_lower_the_norm() -> None:
    rows = [row(IDLE=1), *(row(PLAIN=3.0) for _ in range(69))]
    layout, vector = reduce_rows(rows)
    assert float(layout.verdict(vector, sharded=False)["total"]) == 3.0


def test_shards_add_up() -> None:
    layout, vector = reduce_rows([row(PLAIN=3.0, SHARD=0.5) for _ in range(64 + 36)])
    total = float(layout.verdict(vector, sharded=True)["total"])
    assert total == pytest.approx(math.sqrt(9 + 100 * 0.25))


@lightly
@given(st.sets(st.integers(0, 299), min_size=1, max_size=2), st.integers(0, 9))
@pytest.mark.slow
def test_up_to_two_culprits_are_named_wherever_they_are(ranks: set[int], turn: int) -> None:
    rows = [row(LOSS=math.nan if at in ranks else 1.0, LOSSES=1) for at in range(300)]
    table = table_of(rows, turn)
    assert table.culprits() == sorted(ranks)
    column = table.nonfinite(range(300))["rank/nonfinite"]
    assert {at for at, value in column.items() if value} == ranks


def test_the_first_backward_pass_names_the_culprit() -> None:
    rows = [row(MADE=math.nan, FIRST=2) for _ in range(200)]
    rows[177] = row(MADE=math.nan, FIRST=1)
    assert table_of(rows).culprits() == [177]


def test_of_many_culprits_those_with_a_row_are_named() -> None:
    rows = [row(LOSS=math.nan, LOSSES=1) for _ in range(100)]
    assert table_of(rows, turn=1).culprits() == [0, *range(64, 100)]


def test_a_poisoned_rank_is_named() -> None:
    rows = [row() for _ in range(100)]
    rows[99] = row(POISONED=1)
    assert table_of(rows).who(RankField.POISONED) == [99]
    assert table_of(rows).count(RankField.POISONED) == 1


def train(rank: int, bad: int | None, guarded: bool) -> dict[str, Any]:
    rank_table.MAX_TABLE_RANKS = 2  # four ranks stand for many
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer) if guarded else None
    losses = []
    for step in range(12):
        torch.manual_seed(step * 10 + rank)
        x = torch.randn(4, 3)
        if step == bad:
            if not guarded:
                continue
            x[1] *= math.nan if rank == 3 else 1
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found = {"state": [p.detach().clone() for p in model.parameters()]}
    if guard is not None:
        guard.close()
        found["actions"] = [action.step for action in guard.actions]
        found["ranks"] = [item.where.rank for item in guard.findings if item.code == "HD602"]
    return found


@pytest.mark.parametrize("bad", [None, 5])
@pytest.mark.slow
def test_a_windowed_table_skips_and_names_as_a_complete_one(bad: int | None) -> None:
    plain = run_ranks(train, 4, bad, False)
    guarded = run_ranks(train, 4, bad, True)
    for one, other in zip(plain, guarded, strict=True):
        assert all(map(torch.equal, one["state"], other["state"]))
        assert other["actions"] == ([] if bad is None else [bad])
    assert guarded[0]["ranks"] == ([] if bad is None else [3])


def count_sockets() -> int:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    found = 0
    for link in links:
        try:
            found += os.readlink(link).startswith("socket:")
        except OSError:  # the listing's own descriptor
            continue
    return found


def count_side_channels(rank: int, bad: bool) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    model(torch.randn(2, 3)).sum().backward()
    optimizer.zero_grad()
    dist.barrier()
    before = count_sockets()
    found: dict[str, Any] = {"sockets": [], "groups": []}

    def note() -> None:
        found["sockets"].append(count_sockets() - before)
        found["groups"].append(len(HostGroup._of_ranks))

    guards = [headway.Guard(model, optimizer), headway.Guard(other, second)]
    note()
    for guard, net, update in zip(guards, (model, other), (optimizer, second), strict=True):
        for batch in guard([torch.ones(2, 3) * (math.nan if bad else 1), torch.ones(2, 3)]):
            net(batch).square().mean().backward()
            update.step()
            update.zero_grad()
        note()
    for guard in guards:
        guard.close()
    note()
    return found


def test_a_healthy_run_opens_no_socket() -> None:
    for found in run_ranks(count_side_channels, 2, False):
        assert found["sockets"] == [0, 0, 0, 0]


@pytest.mark.slow
def test_guards_share_one_group_that_a_bad_step_opens_and_the_last_closes() -> None:
    for found in run_ranks(count_side_channels, 2, True):
        none, first, both, closed = found["sockets"]
        assert none == 0
        assert first == both > 0
        assert closed == 0
        assert found["groups"] == [1, 1, 1, 0]


def train_without_descriptors(rank: int, folder: str) -> dict[str, Any]:
    """A rank that may open hardly any more files; a bad step, and snapshots on disk."""
    said = listen()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.zero_grad()
    before = count_sockets()
    if rank == 1:
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, used + 20))
    plan = headway.Snapshots(every=8, disk_share=1.0)
    guard = headway.Guard(model, optimizer, run_dir=folder, snapshots=plan)
    for step, batch in enumerate(guard([torch.ones(2, 3)] * 20)):
        bad = math.nan if step == 3 and rank == 0 else 1.0
        (model(batch) * bad).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sockets = count_sockets() - before
    guard.close()
    return {"said": said, "sockets": sockets, "skipped": [one.step for one in guard.actions]}


def test_too_few_descriptors_for_connections_are_no_end_of_the_training(tmp_path: Path) -> None:
    first, second = run_ranks(train_without_descriptors, 2, str(tmp_path))
    for found in (first, second):
        assert found["skipped"] == [3]
        assert found["sockets"] == 0
    (told,) = [text for text in first["said"] if "snapshots" in text]
    assert "limit on open files" in told
    assert "ulimit -n" in told
    assert any("cannot open connections" in text for text in first["said"])
    assert not any("snapshots" in text for text in second["said"]), "once, not on every rank"
