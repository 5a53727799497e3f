"""Loops that make their own data: a bad step is run again as the turn it was, or says why not."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import random
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard, Policy
from headway.config import Settings
from headway.guard import optimizer_step
from headway.guard.measure.step_record import HostTransfer
from headway.guard.script.launcher import ScriptLauncher
from headway.rerun.strategies import iteration_state, loop_follower
from headway.torch_adapters import rng

STEPS, BAD = 14, 9
Loop = Callable[[nn.Module, Any, Any, list[Any]], None]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


class Net(nn.Module):
    """Dropout, BatchNorm, and a logarithm that a zero breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.inner(torch.log(x))))  # born here
        return self.head(self.drop(h))


BORN = next(
    number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("# born here")
)


def poison(x: Tensor, step: int, bad: int) -> Tensor:
    if step == bad:
        x[2, 1] = 0.0
    return x


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    return (net(x) - x.sum(dim=1, keepdim=True)).square().mean()


# The loops. Each trains for STEPS steps and breaks in step `bad`.


def inline(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    for step in range(STEPS):
        x = poison(torch.rand(4, 3) + 0.5, step, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((step, loss.item()))


def indexed(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    data = torch.rand(64, 3) + 0.5
    for step in range(STEPS):
        picked = torch.randint(0, 64, (4,))
        x = poison(data[picked].clone(), step, bad)
        loss = loss_of(net, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        seen.append((step, picked.tolist(), loss.item()))


def asked(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    rng = np.random.default_rng(3)

    def get_batch(step: int) -> Tensor:
        made = torch.from_numpy(rng.random((4, 3), dtype=np.float32)) + 0.5
        return poison(made, step, bad)

    for step in range(STEPS):
        x = get_batch(step)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((step, loss.item()))


def counting_first(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    step = -1
    mean = 0.0
    while True:
        step += 1
        if step >= STEPS:
            break
        x = poison(torch.rand(4, 3) + 0.5 + 0.01 * step, step, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        mean = 0.9 * mean + 0.1 * loss.item()
        optimizer.step()
        seen.append((step, loss.item()))


def counting_last(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    step = 0
    while step < STEPS:
        x = poison(torch.rand(4, 3) + 0.5 + 0.01 * step, step, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((step, loss.item(), random.random()))
        step += 1


def epochs(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    data, size, step = torch.rand(24, 3) + 0.5, 4, 0
    for epoch in range(3):
        order = torch.randperm(len(data))
        for i in range(0, len(data), size):
            x = poison(data[order[i : i + size]], step, bad)
            loss = loss_of(net, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            seen.append((epoch, i, loss.item()))
            if step == STEPS:
                return


class Feeder:
    """As many write it: a place in the data, and a generator of its own."""

    def __init__(self, bad: int) -> None:
        self.data = torch.rand(80, 3) + 0.5
        self.data[bad * 4 + 2, 1] = 0.0 if 0 <= bad < STEPS else 1.0
        self.place = 0
        self.noise = torch.Generator().manual_seed(7)

    def next_batch(self) -> Tensor:
        x = self.data[self.place : self.place + 4]
        self.place += 4
        return x * (1.0 + 0.1 * torch.rand(4, 1, generator=self.noise))


def fed(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    feeder = Feeder(bad)
    for step in range(STEPS):
        x = feeder.next_batch()
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((step, feeder.place, loss.item()))


def drawn_ahead(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def draw(step: int) -> Tensor:
        return poison(torch.rand(4, 3) + 0.5, step, bad)

    step = 0
    x = draw(step)
    while True:
        loss = loss_of(net, x)
        x = draw(step + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        step += 1
        if step >= STEPS:
            break


def accumulating(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    for micro in range(2 * STEPS):
        x = poison(torch.rand(4, 3) + 0.5, micro, 2 * bad)
        loss = loss_of(net, x) / 2
        loss.backward()
        seen.append(loss.item())
        if micro % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def in_a_function(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def train_step(x: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(net, x)
        loss.backward()
        optimizer.step()
        return loss.item()

    for step in range(STEPS):
        x = poison(torch.rand(4, 3) + 0.5, step, bad)
        seen.append(train_step(x))


def over_a_list(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    batches = [(torch.rand(4, 3) + 0.5, number) for number in range(STEPS)]
    for number, (x, tag) in enumerate(batches):
        x = poison(x, tag, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((number, loss.item()))


class Numbered:
    """Counts for itself, from where its epoch begins."""

    def __init__(self, at: int) -> None:
        self.at = at

    def next(self, bad: int) -> Tensor:
        draw = torch.Generator().manual_seed(self.at)
        x = poison(torch.rand(4, 3, generator=draw) + 0.5, self.at, bad)
        self.at += 1
        return x


def new_in_each_epoch(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    for begin in (0, 7):
        source = Numbered(begin)
        for _ in range(7):
            x = source.next(bad)
            loss = loss_of(net, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append((source.at, loss.item()))


def from_an_iterator(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    source = itertools.cycle([poison(torch.rand(4, 3) + 0.5, at, bad) for at in range(STEPS)])
    for _ in range(STEPS):
        x = next(source)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())


def yielding(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def losses() -> Iterator[float]:
        for step in range(STEPS):
            x = poison(torch.rand(4, 3) + 0.5, step, bad)
            loss = loss_of(net, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    seen.extend(losses())


def comprehension(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def train_step(x: Tensor) -> float:
        x = x.float()
        optimizer.zero_grad()
        loss = loss_of(net, x)
        loss.backward()
        optimizer.step()
        return loss.item()

    batches = [poison(torch.rand(4, 3) + 0.5, at, bad) for at in range(STEPS)]
    seen.extend(train_step(x) for x in batches)


def recursion(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def train_from(step: int) -> None:
        if step == STEPS:
            return
        x = poison(torch.rand(4, 3) + 0.5, step, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        train_from(step + 1)

    train_from(0)


def sent_to(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def worker() -> Iterator[float]:
        total = 0.0
        while True:
            x = yield total  # type: ignore[misc]
            loss = loss_of(net, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()

    trainer: Any = worker()
    next(trainer)
    batches = [poison(torch.rand(4, 3) + 0.5, at, bad) for at in range(STEPS)]
    seen.extend(map(trainer.send, batches))


def async_for(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    async def batches() -> AsyncIterator[Tensor]:
        for at in range(STEPS):
            await asyncio.sleep(0)
            yield poison(torch.full((4, 3), 0.5 + at / 20), at, bad)

    async def main() -> None:
        async for x in batches():
            loss = loss_of(net, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            await asyncio.sleep(0)
            seen.append(loss.item())

    asyncio.run(main())


def in_a_try(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    scale = torch.ones(())
    for step in range(STEPS):
        try:
            x = poison(torch.rand(4, 3) + 0.5, step, bad)
            loss = loss_of(net, x * scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        finally:
            scale = scale * 0.9
        seen.append((step, loss.item()))


class Learner:
    """Counts its steps itself, after each of them."""

    def __init__(self, net: nn.Module, optimizer: Any, rows: Tensor) -> None:
        self.net, self.optimizer, self.rows, self.done = net, optimizer, rows, 0

    def step(self) -> float:
        loss = loss_of(self.net, self.rows[self.done * 4 : self.done * 4 + 4])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()


def counting_in_an_object(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    rows = torch.rand(4 * STEPS, 3) + 0.5
    if bad >= 0:
        rows[4 * bad + 2, 1] = 0.0
    learner = Learner(net, optimizer, rows)
    while learner.done < STEPS:
        seen.append(learner.step())


def emptying_a_queue(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    rows = torch.rand(2 * STEPS, 4, 3) + 0.5
    if bad >= 0:
        rows[2 * bad, 2, 1] = 0.0
    waiting = deque(range(2 * STEPS))
    while waiting:
        optimizer.zero_grad()
        for _ in range(2):
            loss_of(net, rows[waiting.popleft()]).backward()
        optimizer.step()
        seen.append(len(waiting))


LOOPS = [
    inline,
    in_a_try,
    indexed,
    asked,
    counting_first,
    counting_last,
    counting_in_an_object,
    emptying_a_queue,
    epochs,
    fed,
    drawn_ahead,
    accumulating,
    in_a_function,
    over_a_list,
    new_in_each_epoch,
    # Only a part of the iteration can be run again: what came before is in the frame.
    from_an_iterator,
    yielding,
    comprehension,
    recursion,
    sent_to,
    async_for,
]


class Run:
    """A training with or without a guard, and everything a replay might leave a trace in."""

    def __init__(self, loop: Any, bad: int = BAD, **options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.seen: list[Any] = []
        guarded = options.pop("guarded", True)
        self.guard = Guard(self.net, self.optimizer, **options) if guarded else None
        with self.guard or nullcontext():
            loop(self.net, self.optimizer, bad, self.seen)
        self.drawn = (random.random(), torch.rand(1).item(), np.random.random())

    def everything(self) -> dict[str, Any]:
        return {
            **state_of(self.net, self.optimizer),
            "seen": repr(self.seen),
            "drawn": self.drawn,
        }


@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_of_a_bad_step_is_named_and_a_cure_tried(loop: Loop) -> None:
    run = Run(loop)
    assert run.guard is not None
    (why,) = run.guard.explanations
    assert (why.step, why.nature) == (BAD, "deterministic")
    assert why.origin is not None
    assert why.origin.place is not None
    assert (why.origin.op, why.origin.place.line, why.origin.kind) == ("log", BORN, "log-of-zero")
    assert why.cure is not None
    assert not run.guard.replaying
    # Later steps are as if it had merely been skipped.
    plain = Run(loop, policy=Policy(replay=False))
    assert_same(run.everything(), plain.everything())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_healthy_run_is_the_same_bit_for_bit(loop: Loop) -> None:
    assert_same(Run(loop, bad=-1).everything(), Run(loop, bad=-1, guarded=False).everything())


# Where a turn cannot be run again as it was.


def drawing_in_between(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    for step in range(STEPS):
        x = poison(torch.full((4, 3), 0.5), step, bad)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(torch.rand(1).item())


def asking_an_iterator(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    source = itertools.cycle([poison(torch.rand(4, 3) + 0.5, at, bad) for at in range(STEPS)])
    for _ in range(STEPS):
        loss = loss_of(net, next(source))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())


def yielding_within(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def losses() -> Iterator[float]:
        for step in range(STEPS):
            with nullcontext():
                loss = loss_of(net, poison(torch.rand(4, 3) + 0.5, step, bad))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item()

    seen.extend(losses())


def rebinding(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    def train_step(hidden: Tensor, step: int) -> Tensor:
        if step == bad:
            hidden = hidden.log()  # of -1
        hidden = hidden * 0.9
        loss = net(hidden + 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        return torch.full((4, 3), -1.0)

    functools.reduce(train_step, range(STEPS), torch.full((4, 3), -1.0))


def at_once(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    inline(net, optimizer, 0, seen)


def popping(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    deck = [poison(torch.rand(4, 3) + 0.5, at, bad) for at in range(STEPS)]
    while deck:
        x = deck.pop(0)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())


UNREPEATABLE = {
    asking_an_iterator: "its loop consumes an iterator (`source`)",
    drawing_in_between: "random numbers were drawn between the previous step and this iteration",
    yielding_within: "yields",
    rebinding: "it assigned `hidden` again",
    at_once: "it was the first of its loop",
    popping: "it computed a different `x`: something that it reads has changed",
}


@pytest.mark.parametrize("loop", UNREPEATABLE)
def test_nothing_is_claimed_of_another_turn_and_the_reason_is_told(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(loop)
    assert run.guard is not None
    assert not run.guard.explanations
    finding = next(item for item in run.guard.findings if item.code == "HD101")
    assert UNREPEATABLE[loop] in finding.message
    assert UNREPEATABLE[loop] in finding.evidence["why"]
    assert "guard(range(n))" in finding.remedies[0].text
    assert not finding.remedies[0].tested
    assert "To get the line next time" in caplog.text
    plain = Run(loop, policy=Policy(replay=False))
    assert_same(run.everything(), plain.everything())


def test_a_loop_over_guarded_numbers_knows_its_first_step() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for step in guard(range(3)):
            loss_of(net, poison(torch.rand(4, 3) + 0.5, step, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert guard.explanations[0].origin is not None


def test_data_that_came_bad_is_named_and_not_the_step() -> None:
    data = torch.rand(32, 3) + 0.5
    data[17, 1] = float("nan")
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for step in range(8):
            x = data[4 * step : 4 * step + 4]
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
    (why,) = guard.explanations
    assert why.origin is not None
    assert (why.origin.kind, why.guilt) == ("poisoned-batch", "batch")
    assert "in `data`" in why.headline
    found = next(item for item in guard.findings if item.code == "HD501")
    assert (found.step, found.where.sample) == (4, 1)


class Late(HostTransfer):
    """As of a fused optimizer on CUDA: nobody knows of a bad step before the next."""

    lag = 1

    def __init__(self, take: Any) -> None:
        super().__init__(take)
        self._waiting: list[Any] = []

    def send(self, note: Any, tensors: Any) -> None:
        self._waiting.append((note, dict(tensors)))

    def collect(self) -> None:
        waiting, self._waiting = self._waiting, []
        for note, tensors in waiting:
            super().send(note, tensors)


@pytest.mark.parametrize("loop", [inline, counting_first, counting_last, fed, drawn_ahead])
def test_a_step_that_is_known_to_be_bad_one_step_late_is_that_very_turn(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_step, "HostTransfer", Late)
    run = Run(loop)
    assert run.guard is not None
    (why,) = run.guard.explanations
    assert why.step == BAD
    assert why.origin is not None
    assert (why.origin.kind, why.origin.place and why.origin.place.line) == ("log-of-zero", BORN)
    plain = Run(loop, policy=Policy(replay=False))
    assert_same(run.everything(), plain.everything())


def test_two_optimizers_share_a_turn() -> None:
    torch.manual_seed(0)
    first, second = Net(), Net()
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in (first, second)]
    with Guard([first, second], optimizers) as guard:
        for step in range(8):
            x = torch.rand(4, 3) + 0.5
            loss = loss_of(first, x)
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            other = loss_of(second, poison(torch.rand(4, 3) + 0.5, step, 5))
            optimizers[1].zero_grad()
            other.backward()
            optimizers[1].step()
    assert [why.step for why in guard.explanations] == [5]
    assert guard.explanations[0].origin is not None
    assert guard.explanations[0].origin.module == "model1"


def by_hand(net: nn.Module, optimizer: Any, bad: int, seen: list[Any]) -> None:
    data = torch.rand(4 * STEPS, 3) + 0.5
    if bad >= 0:
        data[4 * bad + 2, 1] = 0.0
    loader = DataLoader(TensorDataset(data), 4)
    batches = iter(loader)
    for step in range(STEPS):
        (x,) = next(batches)
        loss = loss_of(net, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((step, x.tolist(), loss.item()))


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("bad", [-1, BAD])
@pytest.mark.slow
def test_batches_drawn_by_hand_from_a_loader_are_given_again(bad: int, idle: bool) -> None:
    """`idle`: a second optimizer never steps, so a step is over only when the next one begins."""
    runs = []
    gc.collect()  # a launch watches whatever optimizer is still there
    other = [torch.optim.SGD(Net().parameters(), lr=1e-2)] if idle else []
    for replay in (True, False):
        with ScriptLauncher(settings=Settings(), policy=Policy(replay=replay)) as launch:
            runs.append(Run(by_hand, bad=bad, guarded=False))
        assert launch.guard is not None
        found = launch.guard.explanations
        assert [why.step for why in found] == ([BAD] if replay and bad == BAD else [])
        for why in found:
            assert why.origin is not None
            assert (why.origin.kind, why.origin.rows) == ("log-of-zero", (2,))
            assert why.cure is not None
        launch.close()
    assert len(other) == idle  # it was there all the time
    assert_same(runs[0].everything(), runs[1].everything())


def test_a_loop_over_batches_is_not_followed_once_a_batch_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first batch of a script comes before its guard."""
    kept: list[Any] = []
    monkeypatch.setattr(
        loop_follower,
        "IterationState",
        lambda *of: kept.append(of) or iteration_state.IterationState(*of),
    )
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ScriptLauncher(settings=Settings(), policy=Policy()) as launch:
        for (x,) in DataLoader(TensorDataset(torch.rand(12, 3)), batch_size=2):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    assert launch.guard is not None
    assert launch.guard.step == 6
    assert len(kept) == 1
    launch.close()


def test_reading_a_frame_keeps_nothing_alive() -> None:
    """Older Pythons keep a copy of the variables that were asked for, and all tensors with it."""
    step, large = 3, torch.rand(4)
    gone = weakref.ref(large)
    frame = inspect.currentframe()
    assert frame is not None
    assert iteration_state.read_variables(frame, frozenset(("step", "none"))) == {"step": step}
    del large
    assert gone() is None


def test_the_variables_that_somebody_asked_for_stay_theirs() -> None:
    held = torch.rand(4)
    mine = locals()
    frame = inspect.currentframe()
    assert frame is not None
    iteration_state.read_variables(frame, frozenset(("held",)))
    assert mine["held"] is held


def test_pythons_random_state_is_read_as_it_is() -> None:
    random.seed(5)
    random.random()
    draws = (random.random, lambda: random.gauss(0, 1), lambda: random.seed(6))
    for draw in (*draws, lambda: [random.getrandbits(32) for _ in range(624)]):
        before = rng.RngState()
        draw()
        expected = random.getstate()
        now = rng.RngState()
        before.restore()
        now.restore()
        assert random.getstate() == expected


def test_numpys_random_state_is_read_as_it_is() -> None:
    np.random.seed(5)
    np.random.random()
    for draw in (np.random.random, lambda: np.random.bytes(4 * 624)):
        before = rng.RngState()
        draw()
        expected = np.random.get_state(legacy=False)
        now = rng.RngState()
        before.restore()
        now.restore()
        assert str(np.random.get_state(legacy=False)) == str(expected)


def test_an_object_that_cannot_be_looked_at_costs_the_line_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise TypeError("not for you")

    monkeypatch.delenv("HEADWAY_STRICT")
    monkeypatch.setattr(iteration_state, "find_moving_state", fail)
    run = Run(inline)
    assert run.guard is not None
    assert not run.guard.explanations
    assert [item.step for item in run.guard.findings if item.code == "HD101"] == [BAD]
