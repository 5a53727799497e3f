"""The batch behind a held step is named, and left out when it comes again if so wished."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.paired_trainings import events_of, tensors_of
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard, Policy, diagnose
from headway.guard.recovery import quarantine
from headway.guard.recovery.quarantine import Quarantine
from headway.output.notices import Notices
from headway.rerun import recorded_batch
from headway.rerun.recorded_batch import BatchOrigin, RecordedBatch
from headway.torch_adapters.loaders import sample_indices

SAMPLES, SIZE = 40, 8
BAD = 13
"""The sample that is no number; it is in batch 1."""
AVOIDING = Policy(avoid_bad_batches=True)


def dataset(*bad: int) -> TensorDataset:
    ((x, y),) = batches(1, size=SAMPLES)
    x = x.clone()
    for at in bad:
        x[at, 2] = math.nan
    return TensorDataset(x, y, torch.arange(SAMPLES))


class Run:
    """A net in training under a guard that writes everything down."""

    def __init__(self, run_dir: Path | None, policy: Policy | None = None) -> None:
        self.model = make_net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.guard = Guard(self.model, self.optimizer, run_dir=run_dir, policy=policy)

    def over(self, loader: Any, *, epochs: int = 1, factors: Any = None) -> list[Any]:
        seen = []
        factor = iter(factors or ())
        for _ in range(epochs):
            for batch in self.guard(loader):
                seen.append(batch)
                (squared_error(self.model, batch[:2]) * next(factor, 1.0)).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return seen

    def close(self) -> None:
        self.guard.close()


def data_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in events_of(run_dir, kind)]


LOADERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "shuffled": {"shuffle": True},
    "shuffled, workers": {"shuffle": True, "num_workers": 2, "multiprocessing_context": "fork"},
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_batch_is_named_by_its_samples(kind: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader = DataLoader(dataset(BAD), batch_size=SIZE, **LOADERS[kind])
    seen = run.over(loader, epochs=3)
    run.close()
    bad = [at for at, batch in enumerate(seen) if BAD in batch[2]]
    events = events_of(tmp_path, "quarantine")
    assert [event.step for event in events] == bad
    for event in events:
        data = event.data
        assert data["indices"] == seen[event.step][2].tolist()
        assert (data["epoch"], data["batch"]) == divmod(event.step, SAMPLES // SIZE)
        assert (data["size"], data["reason"], data["sure"]) == (SIZE, "non-finite", True)
        assert (data["dataset"], data["blamed"]) == (f"TensorDataset[{SAMPLES}]", 1)
        assert "micro_batch" not in data
    assert len(bad) == 3


def test_the_bad_sample_is_named_as_the_data_set_knows_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    run = Run(tmp_path)
    seen = run.over(DataLoader(dataset(BAD, 7), batch_size=SAMPLES, shuffle=True))
    run.close()
    rows = sorted(seen[0][2].tolist().index(at) for at in (BAD, 7))
    names = [seen[0][2].tolist()[row] for row in rows]
    (tensor,) = tensors_of(tmp_path)
    assert (tensor.facts["rows"], tensor.facts["indices"]) == (rows, names)
    (finding,) = [found for found in run.guard.findings if found.code == "HD501"]
    assert finding.message.startswith(f"data-set samples {names[0]}, {names[1]} contain ")
    assert finding.evidence["indices"] == names
    assert finding.where.sample == rows[0]


@pytest.mark.parametrize("kind", ["in order", "workers"])
def test_it_is_avoided_when_it_comes_again(kind: str, tmp_path: Path) -> None:
    run = Run(tmp_path, AVOIDING)
    loader = DataLoader(dataset(BAD), batch_size=SIZE, **LOADERS[kind])
    seen = run.over(loader, epochs=3)
    run.close()
    assert [BAD in batch[2] for batch in seen] == [False, True] + [False] * 11
    assert len(data_of(tmp_path, "quarantine")) == 1
    told = data_of(tmp_path, "avoided")
    assert [(data["epoch"], data["batch"]) for data in told] == [(1, 1), (2, 1)]
    assert [data["indices"] for data in told] == [list(range(8, 16))] * 2
    assert [action.step for action in run.guard.actions] == [1]


def test_what_is_left_out_changes_nothing_else(tmp_path: Path) -> None:
    """The run that avoids it is the run that never had it."""
    good = [batch for batch in DataLoader(dataset(BAD), batch_size=SIZE) if BAD not in batch[2]]
    run, clean = Run(tmp_path, AVOIDING), Run(None)
    run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=3)
    clean.over(good, epochs=3)
    assert_same(state_of(run.model, run.optimizer), state_of(clean.model, clean.optimizer))
    run.close(), clean.close()


def test_not_avoided_unless_wished(tmp_path: Path) -> None:
    run = Run(tmp_path)
    seen = run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=3)
    run.close()
    assert len(seen) == 15
    assert [data["times"] for data in data_of(tmp_path, "quarantine")] == [1, 2, 3]
    assert data_of(tmp_path, "avoided") == []


def bad_list() -> list[Any]:
    data = batches(5)
    data[3][0][2, 1] = math.inf
    return data


def test_without_indices_the_content_is_known_again(tmp_path: Path) -> None:
    run = Run(tmp_path, AVOIDING)
    seen = []
    for _ in range(3):
        seen += run.over(x for x in bad_list())
    run.close()
    assert len(seen) == 5 + 4 + 4
    (data,) = data_of(tmp_path, "quarantine")
    assert "indices" not in data
    assert data["key"].startswith("content-")
    assert (data["epoch"], data["batch"], data["size"]) == (0, 3, 8)
    assert [told["key"] for told in data_of(tmp_path, "avoided")] == [data["key"]] * 2


def test_a_held_spike_counts_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.over(batches(40), factors=[1e8 if at == 30 else 1.0 for at in range(40)])
    run.close()
    (event,) = events_of(tmp_path, "quarantine")
    assert (event.step, event.data["reason"], event.data["batch"]) == (30, "spike", 30)


def test_a_spike_that_is_not_held_is_no_reason(tmp_path: Path) -> None:
    run = Run(tmp_path, Policy(hold_spikes=False))
    run.over(batches(40), factors=[1e3 if at == 30 else 1.0 for at in range(40)])
    run.close()
    assert data_of(tmp_path, "quarantine") == []


def accumulate(run: Run, factors: list[float], window: int, spoil: int | None = None) -> None:
    for number, (batch, factor) in enumerate(
        zip(run.guard(batches(len(factors))), factors, strict=True)
    ):
        (squared_error(run.model, batch) * factor / window).backward()
        if number == spoil:
            assert run.model.head.weight.grad is not None
            run.model.head.weight.grad[0, 0] = math.nan
        if number % window == window - 1:
            run.optimizer.step()
            run.optimizer.zero_grad()
    run.close()


def test_of_several_micro_batches_the_one_with_the_bad_loss_is_blamed(tmp_path: Path) -> None:
    factors = [1.0] * 12
    factors[6] = math.nan
    accumulate(Run(tmp_path), factors, 4)
    (event,) = events_of(tmp_path, "quarantine")
    assert event.step == 1
    assert {name: event.data[name] for name in ("batch", "micro_batch", "blamed")} == {
        "batch": 6,
        "micro_batch": 2,
        "blamed": 1,
    }


def test_in_a_window_longer_than_what_is_kept(tmp_path: Path) -> None:
    factors = [1.0] * 20
    factors[17] = math.inf
    accumulate(Run(tmp_path), factors, 20)
    (data,) = data_of(tmp_path, "quarantine")
    assert (data["batch"], data["micro_batch"]) == (17, 17)


def test_where_no_loss_tells_all_of_them_are_blamed(tmp_path: Path) -> None:
    accumulate(Run(tmp_path), [1.0] * 9, 3, spoil=4)
    told = data_of(tmp_path, "quarantine")
    assert [data["batch"] for data in told] == [3, 4, 5]
    assert [data["micro_batch"] for data in told] == [0, 1, 2]
    assert [data["blamed"] for data in told] == [3, 3, 3]


def test_two_optimizers_blame_a_batch_once(tmp_path: Path) -> None:
    model = make_net()
    inner = torch.optim.SGD(model.inner.parameters(), lr=1e-2)
    head = torch.optim.SGD([*model.norm.parameters(), *model.head.parameters()], lr=1e-2)
    with Guard(model, [inner, head], run_dir=tmp_path) as guard:
        for batch in guard(bad_list()):
            squared_error(model, batch).backward()
            for optimizer in (inner, head):
                optimizer.step()
                optimizer.zero_grad()
        assert [action.step for action in guard.actions] == [3, 3]
    assert [data["batch"] for data in data_of(tmp_path, "quarantine")] == [3]


def test_many_steps_on_one_batch_blame_it_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for batch in run.guard(batches(2)):
        for number in range(30):
            (squared_error(run.model, batch) * (math.nan if number in (3, 4, 29) else 1)).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    run.close()
    assert [data["batch"] for data in data_of(tmp_path, "quarantine")] == [0, 1]


def test_bad_weights_are_not_the_batchs_fault(tmp_path: Path) -> None:
    run = Run(tmp_path, Policy(halt=False))
    for number, batch in enumerate(run.guard(batches(4))):
        if number == 2:
            with torch.no_grad():
                run.model.head.weight[0, 0] = math.nan
        squared_error(run.model, batch).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if number == 2:
            break
    run.close()
    assert [action.step for action in run.guard.actions] == [2]
    assert data_of(tmp_path, "quarantine") == []


def test_a_sample_of_several_bad_batches_is_a_suspect(tmp_path: Path) -> None:
    torch.manual_seed(5)
    run = Run(tmp_path)
    run.over(DataLoader(dataset(BAD), batch_size=4, shuffle=True), epochs=4)
    run.close()
    first, *later = data_of(tmp_path, "quarantine")
    assert "suspects" not in first
    assert [data["suspects"][0] for data in later] == [[BAD, 2], [BAD, 3], [BAD, 4]]


def test_the_same_composition_again_is_no_further_evidence(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=3)
    run.close()
    assert not any("suspects" in data for data in data_of(tmp_path, "quarantine"))


def test_an_adapter_that_hands_batches_in_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for batch in bad_list():
        run.guard.saw_batch(batch)
        squared_error(run.model, batch).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.guard.step_done()
    run.close()
    (data,) = data_of(tmp_path, "quarantine")
    assert data["key"] == RecordedBatch(bad_list()[3]).identity().key
    assert "epoch" not in data


# Remembering.


def test_a_later_segment_avoids_what_the_run_directory_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for expected in (10 - 1, 8):
        run = Run(tmp_path, AVOIDING)
        seen = run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=2)
        run.close()
        assert len(seen) == expected
    assert [
        text for text in caplog.messages if "the update was skipped for 1 batches earlier" in text
    ]


def test_a_directory_that_was_damaged_is_no_obstacle(tmp_path: Path) -> None:
    Run(tmp_path).close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"kind":"event","seg":0,"seq":99,"step":1,"event":"quarantine","data":{}}\n')
        file.write(b'{"kind":"event","seg":0,"seq":99,"step":1,"event":"quarantine","data":{"key":')
        file.write(b"quarantine \xff\n[1]\n")
    run = Run(tmp_path, AVOIDING)
    assert len(run.over(batches(3), epochs=2)) == 6
    run.close()


def told_to(into: list[Any]) -> Quarantine:
    return Quarantine(
        lambda step, kind, data: into.append((step, kind, data)), Notices(), avoid=True
    )


def kept(*indices: Any, number: int = 0) -> RecordedBatch:
    return RecordedBatch(torch.ones(2), BatchOrigin(0, number, "D[9]", indices))


def test_the_state_survives_as_json() -> None:
    events: list[Any] = []
    one, other = told_to(events), told_to(events)
    one.take(3, [kept(1, 2, (3, "a"))], "spike")
    one.take(4, [kept(1, 5, (3, "a"))], "spike")
    other.take(1, [kept(7, 8)], "spike")
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.state_dict() == one.state_dict()
    assert other.avoids(5, kept(5, (3, "a"), 1))
    assert not other.avoids(5, kept(7, 8)), "loading replaces"
    other.take(6, [kept(1, 6)], "spike")
    assert events[-1][2]["suspects"] == [[1, 3]]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_BATCHES", 5)
    monkeypatch.setattr(quarantine, "MAX_SAMPLES", 30)
    monkeypatch.setattr(quarantine, "LISTED", 4)
    events: list[Any] = []
    found = told_to(events)
    for number in range(20):
        found.take(number, [kept(*range(number, number + 10))], "spike")
    assert len(found) == 5
    assert len(found.state_dict()["samples"]) <= 30
    assert found.avoids(21, kept(*range(19, 29)))
    assert not found.avoids(21, kept(*range(10)))
    assert events[0][2]["size"] == 10
    assert events[0][2]["indices"] == [0, 1, 2, 3]


# Not avoiding where it would do harm.


def test_an_endless_loader_of_bad_batches_does_not_hang(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = batches(3)
    for x, _ in data:
        x[0, 0] = math.nan
    run = Run(tmp_path, Policy(avoid_bad_batches=True, halt=False))
    seen = run.over(itertools.islice(itertools.cycle(data), 30))
    run.close()
    assert 3 < len(seen) < 30
    assert [text for text in caplog.messages if "every batch is on the list to avoid" in text]


class Unseen:
    """Holds its numbers where nobody looks."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_batches_that_cannot_be_told_apart_are_never_avoided(tmp_path: Path) -> None:
    run = Run(tmp_path, AVOIDING)
    seen = 0
    for _ in range(2):
        for unseen in run.guard([Unseen(x) for x, _ in bad_list()]):
            seen += 1
            run.model(unseen.x).pow(2).mean().backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    run.close()
    assert seen == 10
    assert [data["sure"] for data in data_of(tmp_path, "quarantine")] == [False, False]


@pytest.fixture
def two_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.slow
def test_no_rank_leaves_a_batch_out_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, AVOIDING)
    assert len(run.over(bad_list(), epochs=3)) == 15
    run.close()
    assert len(data_of(tmp_path, "quarantine")) == 3
    said = [text for text in caplog.messages if "avoid_bad_batches is off" in text]
    assert len(said) == 1


# What it costs, and what it must not break.


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    original = getattr(owner, name)

    def call(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("policy", [None, AVOIDING], ids=["default", "avoiding"])
def test_healthy_steps_ask_nobody_who_their_batch_is(
    policy: Policy | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hashes = counted(monkeypatch, recorded_batch, "content_hash")
    lists = counted(monkeypatch, recorded_batch, "_plain_indices")
    run = Run(tmp_path, policy)
    run.over(batches(20), epochs=2)
    run.over(DataLoader(dataset(), batch_size=SIZE), epochs=2)
    run.close()
    assert (hashes, lists) == ([], [])


def test_the_hash_is_made_once_for_a_bad_batch_and_never_where_indices_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hashes = counted(monkeypatch, recorded_batch, "content_hash")
    run = Run(tmp_path)
    run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=2)
    assert hashes == []
    run.over(bad_list())
    run.close()
    assert len(hashes) == 1
    hashes.clear()
    avoiding = Run(None, AVOIDING)
    avoiding.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=2)
    avoiding.over(batches(5))
    avoiding.close()
    assert hashes == [], "no content is being looked for"


def test_a_healthy_run_is_the_same_whether_or_not_bad_batches_are_avoided(tmp_path: Path) -> None:
    states = []
    for policy in (None, AVOIDING):
        torch.manual_seed(2)
        run = Run(None, policy)
        seen = run.over(DataLoader(dataset(), batch_size=SIZE, shuffle=True), epochs=3)
        states.append([[list(batch) for batch in seen], state_of(run.model, run.optimizer)])
        run.close()
    assert_same(states[0], states[1])


@pytest.mark.parametrize(
    ("owner", "name"),
    [(sample_indices, "IndexRecorder"), (Quarantine, "avoids"), (Quarantine, "take")],
)
def test_a_defect_of_ours_is_not_the_trainings(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HEADWAY_STRICT")

    def broken(*args: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(owner, name, broken)
    run = Run(None, AVOIDING)
    assert len(run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=2)) == 10
    run.close()
    assert [text for text in caplog.messages if "switched itself off" in text]


def test_a_diagnosis_is_what_the_guard_found(tmp_path: Path) -> None:
    run = Run(tmp_path, AVOIDING)
    run.over(DataLoader(dataset(BAD), batch_size=SIZE), epochs=2)
    run.close()
    report = diagnose(tmp_path)
    assert [found.to_dict() for found in report.findings] == [
        found.to_dict() for found in run.guard.findings
    ]
    assert report.causes[0].code == "HD501"
