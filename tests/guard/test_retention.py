"""HD803 under the real guard: graphs that are kept, by the line that made them, and those meant."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.guarded_trainings import loud, the
from support.paired_trainings import events_of, steps_of
from support.trainings import assert_same, batches, state_of
from torch import Tensor, nn
from torch.optim import SGD, Adam

import headway
from headway import Finding, Guard, Severity
from headway.guard.memory import retained_graphs

STEPS = 140


class Net(nn.Module):
    """Goes on from a state; its encoder's backward needs no weights, so a carried graph can run."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor, state: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        state = torch.tanh(0.5 * state + self.encode(x))  # the state
        return self.head(state.detach() + self.encode(x)), state  # the output


class Bag:
    """Whatever a training keeps."""

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {"out": [], "loss": []}


Guarded = Callable[[Any, Any], Guard | None]
Training = Callable[[Guarded], tuple[list[float], dict[str, Any]]]


def loop(
    guarded: Guarded, body: Callable[[Net, Any, int], Tensor], steps: int = STEPS
) -> tuple[list[float], dict[str, Any]]:
    """The plain loop; `body` computes the loss, runs backward and keeps what it likes."""
    torch.manual_seed(0)
    net = Net()
    optimizer = SGD(net.parameters(), lr=1e-3)
    guard = guarded(net, optimizer)
    losses = []
    for number, batch in enumerate(guard(batches(steps)) if guard else batches(steps)):
        losses.append(float(body(net, batch, number).detach()))
        optimizer.step()
        optimizer.zero_grad()
    if guard:
        guard.close()
    return losses, state_of(net, optimizer)


def error_of(net: Net, batch: Any) -> Tensor:
    x, y = batch
    return (net(x)[0] - y).square().mean()  # the loss


# Kept for ever.


def losses_in_a_list(guarded: Guarded) -> Any:
    kept = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        loss.backward()
        kept.append(loss)
        return loss

    return loop(guarded, body)


def a_sum_of_losses(guarded: Guarded) -> Any:
    total: Any = 0.0

    def body(net: Net, batch: Any, number: int) -> Tensor:
        nonlocal total
        loss = error_of(net, batch)
        loss.backward()
        total += loss  # keeps it
        return loss

    return loop(guarded, body)


def outputs_in_an_attribute(guarded: Guarded) -> Any:
    bag = Bag()

    def body(net: Net, batch: Any, number: int) -> Tensor:
        x, y = batch
        out, _ = net(x)
        loss = (out - y).square().mean()
        loss.backward()
        bag.history["out"].append(out)
        return loss

    return loop(guarded, body)


def a_state_carried_on(guarded: Guarded) -> Any:
    state: Any = 0.0

    def body(net: Net, batch: Any, number: int) -> Tensor:
        nonlocal state
        x, y = batch
        out, state = net(x, state)
        loss = (out - y).square().mean() + state.square().mean()
        loss.backward(retain_graph=True)
        return loss

    return loop(guarded, body)


def a_scaled_loss_in_a_list(guarded: Guarded) -> Any:
    torch.manual_seed(0)
    net, kept = Net(), []
    optimizer = SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    guard = guarded(net, optimizer)
    for batch in guard(batches(STEPS)) if guard else batches(STEPS):
        loss = error_of(net, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        kept.append(loss)
    if guard:
        guard.close()
    return [float(loss.detach()) for loss in kept], state_of(net, optimizer)


def every_fiftieth_loss(guarded: Guarded) -> Any:
    logged = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        loss.backward()
        if number % 50 == 0:
            logged.append(loss)  # keeps it
        return loss

    return loop(guarded, body, steps=260)


def the_second_of_two_losses(guarded: Guarded) -> Any:
    """Two players with an optimizer each; only the second one's losses are kept."""
    torch.manual_seed(0)
    players = [Net(), Net()]
    optimizers = [Adam(net.parameters(), lr=1e-3) for net in players]
    guard = guarded(players, optimizers)
    kept, losses = [], []
    for batch in guard(batches(STEPS)) if guard else batches(STEPS):
        for net, optimizer in zip(players, optimizers, strict=True):
            loss = error_of(net, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        kept.append(loss)
    if guard:
        guard.close()
    return losses, [state_of(*pair) for pair in zip(players, optimizers, strict=True)]


def the_second_backward_of_a_step(guarded: Guarded) -> Any:
    kept = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        x, _ = batch
        net(x)[1].square().mean().backward()
        loss = error_of(net, batch)
        loss.backward()
        kept.append(loss)
        return loss

    return loop(guarded, body)


def first_features(net: nn.Sequential, x: Tensor) -> Tensor:
    return net[0](x)  # the features


def features_far_from_the_loss(guarded: Guarded) -> Any:
    """Of the first layer of many: hundreds of nodes lie between them and the loss."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6)) for _ in range(60)]
    net = nn.Sequential(*layers)
    optimizer = SGD(net.parameters(), lr=1e-3)
    guard = guarded(net, optimizer)
    kept, losses = [], []
    for x, y in guard(batches(STEPS)) if guard else batches(STEPS):
        features = first_features(net, x)
        loss = (net[1:](features) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(features)
        losses.append(float(loss.detach()))
    if guard:
        guard.close()
    return losses, state_of(net, optimizer)


LEAKS: dict[Training, tuple[Any, str, str | None]] = {
    # training: (function around the line, what the line says, the holder). The line that keeps the
    # loss, if only one line of the file adds to the holder; else the line that made it.
    losses_in_a_list: (error_of, "# the loss", "list `kept` in body()"),
    a_sum_of_losses: (a_sum_of_losses, "# keeps it", "tensor `total` in body()"),
    outputs_in_an_attribute: (Net.forward, "# the output", "list `bag.history['out']` in body()"),
    a_state_carried_on: (Net.forward, "# the state", None),
    a_scaled_loss_in_a_list: (error_of, "# the loss", "list `kept` in a_scaled_loss_in_a_list()"),
    every_fiftieth_loss: (every_fiftieth_loss, "# keeps it", "list `logged` in body()"),
    the_second_backward_of_a_step: (error_of, "# the loss", "list `kept` in body()"),
    features_far_from_the_loss: (
        first_features,
        "# the features",
        "list `kept` in features_far_from_the_loss()",
    ),
    the_second_of_two_losses: (
        error_of,
        "# the loss",
        "list `kept` in the_second_of_two_losses()",
    ),
}


@pytest.mark.parametrize("training", LEAKS, ids=lambda training: training.__name__)
def test_kept_graphs_are_found_by_the_line_that_made_them_and_no_number_changes(
    training: Training, tmp_path: Path
) -> None:
    guard, outcome = watched(training, run_dir=tmp_path / "run")
    assert_same(list(training(lambda *_: None)), list(outcome))
    found = the(guard, "HD803")
    assert found.severity == Severity.ERROR
    function, words, holder = LEAKS[training]
    assert_made_in(found, function, words)
    if holder is None:
        assert "the graph of each step continues that of the step before" in found.message
    else:
        assert found.message.endswith(f"held by the {holder}")
    assert found.evidence["kept"] >= 100
    report = headway.diagnose(tmp_path / "run")
    assert [item for item in report.findings if item.code == "HD803"] == [found]


def assert_made_in(found: Finding, function: Any, words: str) -> None:
    assert found.where.file == __file__
    assert found.where.function in (function.__name__, "body")
    lines, first = inspect.getsourcelines(function)
    [line] = [first + at for at, text in enumerate(lines) if text.rstrip().endswith(words)]
    assert found.where.line == line


def watched(training: Training, **options: Any) -> tuple[Guard, Any]:
    """The guard, and what the training came to."""
    made: list[Guard] = []

    def guarded(model: Any, optimizer: Any) -> Guard:
        made.append(Guard(model, optimizer, **options))
        return made[0]

    outcome = training(guarded)
    assert not torch.is_anomaly_enabled()
    return made[0], outcome


@pytest.mark.slow
def test_in_a_compiled_model() -> None:
    torch._dynamo.reset()
    kept = []

    def training(guarded: Guarded) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        compiled: Any = torch.compile(net, backend="aot_eager")
        optimizer = SGD(net.parameters(), lr=1e-3)
        guard = guarded(compiled, optimizer)
        for x, y in guard(batches(STEPS)):
            out = compiled(x)  # made here
            (out - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(out)
        guard.close()

    guard, _ = watched(training)
    found = the(guard, "HD803")
    assert found.where.function == "training"
    assert found.where.line is not None
    source, first = inspect.getsourcelines(test_in_a_compiled_model)
    assert "# made here" in source[found.where.line - first]
    torch._dynamo.reset()


def hoard_for(steps: int, guard: Guard, net: Net, optimizer: Any, then: Exception | None) -> None:
    kept = []
    for batch in guard(batches(steps)):
        loss = error_of(net, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss)
    if then is not None:
        raise then


@pytest.mark.parametrize(
    ("then", "severity"),
    [
        (None, Severity.WARNING),
        (RuntimeError("something else"), Severity.WARNING),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), Severity.ERROR),
    ],
)
def test_a_short_run_that_let_nothing_go(then: Exception | None, severity: Severity) -> None:
    net = Net()
    optimizer = SGD(net.parameters(), lr=1e-3)
    with contextlib.suppress(RuntimeError), Guard(net, optimizer) as guard:
        hoard_for(16, guard, net, optimizer, then)
    found = the(guard, "HD803")
    assert found.severity == severity
    assert_made_in(found, error_of, "# the loss")


# Kept for good reason.


def truncated_backpropagation(guarded: Guarded) -> Any:
    """Backward at every step through the last 30 at most."""
    state: Any = 0.0

    def body(net: Net, batch: Any, number: int) -> Tensor:
        nonlocal state
        x, y = batch
        if number % 30 == 0 and number:
            state = state.detach()
        out, state = net(x, state)
        loss = (out - y).square().mean() + state.square().mean()
        loss.backward(retain_graph=True)
        return loss

    return loop(guarded, body)


def an_average_of_detached_losses(guarded: Guarded) -> Any:
    average = torch.zeros(())

    def body(net: Net, batch: Any, number: int) -> Tensor:
        nonlocal average
        loss = error_of(net, batch)
        loss.backward()
        average = 0.9 * average + 0.1 * loss.detach()
        return loss

    return loop(guarded, body)


def a_replay_buffer(guarded: Guarded) -> Any:
    """Of what was seen and put out, without graphs, to its bound."""
    seen: list[Tensor] = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        x, y = batch
        out, _ = net(x)
        loss = (out - y).square().mean()
        loss.backward()
        seen.append(out.detach())
        if len(seen) > 100:
            seen.pop(0)
        return loss

    return loop(guarded, body)


def two_backwards_through_one_graph(guarded: Guarded) -> Any:
    def body(net: Net, batch: Any, number: int) -> Tensor:
        x, y = batch
        out, state = net(x)
        loss = (out - y).square().mean()
        loss.backward(retain_graph=True)
        (0.1 * loss + state.square().mean()).backward()
        return loss

    return loop(guarded, body)


def features_computed_once(guarded: Guarded) -> Any:
    """One graph that every step runs through, and that is meant to stay."""
    shared: list[Tensor] = []
    scale = nn.Parameter(torch.ones(()))

    def body(net: Net, batch: Any, number: int) -> Tensor:
        if not shared:
            shared.append(torch.stack([x for x, _ in batches(8)]) * scale)
        loss = error_of(net, batch) + 0.0 * shared[0].sum()
        loss.backward(retain_graph=True)
        return loss

    return loop(guarded, body)


def losses_until_the_update(guarded: Guarded) -> Any:
    """Eight micro-batches a step, summed and let go."""
    torch.manual_seed(0)
    net = Net()
    optimizer = SGD(net.parameters(), lr=1e-3)
    guard = guarded(net, optimizer)
    pending: list[Tensor] = []
    losses = []
    for batch in guard(batches(8 * STEPS)) if guard else batches(8 * STEPS):
        pending.append(error_of(net, batch) / 8)
        if len(pending) == 8:
            total = torch.stack(pending).sum()
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            pending.clear()
            losses.append(float(total.detach()))
    if guard:
        guard.close()
    return losses, state_of(net, optimizer)


def losses_as_numbers(guarded: Guarded) -> Any:
    kept = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        loss.backward()
        kept.append(loss.item())
        return loss

    return loop(guarded, body)


def gradients_of_gradients(guarded: Guarded) -> Any:
    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        inner = torch.autograd.grad(loss, list(net.encode.parameters()), create_graph=True)
        loss = loss + 0.01 * sum(part.square().sum() for part in inner)
        loss.backward()
        return loss

    return loop(guarded, body)


def the_last_outputs(guarded: Guarded) -> Any:
    recent: list[Tensor] = []

    def body(net: Net, batch: Any, number: int) -> Tensor:
        x, y = batch
        out, _ = net(x)
        loss = (out - y).square().mean()
        loss.backward()
        recent.append(out)
        del recent[:-40]
        return loss

    return loop(guarded, body)


def a_long_deque(guarded: Guarded) -> Any:
    recent: deque[Tensor] = deque(maxlen=500)

    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        loss.backward()
        recent.append(loss)
        return loss

    return loop(guarded, body, steps=200)


def losses_in_cycles(guarded: Guarded) -> Any:
    """Nobody holds them, but only the garbage collector can let them go, and it seldom comes."""

    class Outcome:
        def __init__(self, loss: Tensor) -> None:
            self.loss, self.me = loss, self

    def body(net: Net, batch: Any, number: int) -> Tensor:
        loss = error_of(net, batch)
        loss.backward()
        Outcome(loss)
        return loss

    gc.disable()
    try:
        return loop(guarded, body, steps=230)
    finally:
        gc.enable()


HEALTHY: list[Training] = [
    truncated_backpropagation,
    an_average_of_detached_losses,
    a_replay_buffer,
    two_backwards_through_one_graph,
    features_computed_once,
    losses_until_the_update,
    losses_as_numbers,
    gradients_of_gradients,
    the_last_outputs,
    a_long_deque,
    losses_in_cycles,
]


@pytest.mark.parametrize("training", HEALTHY, ids=lambda training: training.__name__)
def test_what_is_kept_for_good_reason_is_left_alone(training: Training) -> None:
    guard, outcome = watched(training)
    assert loud(guard) == []
    assert_same(list(training(lambda *_: None)), list(outcome))


# What it costs.


def test_a_healthy_run_is_never_traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switched: list[bool] = []
    monkeypatch.setattr(torch, "set_anomaly_enabled", lambda on, **_: switched.append(on))
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("not in a healthy run"))
    watched(losses_as_numbers, run_dir=tmp_path / "run")
    assert switched == []
    readings = {s.step: s.values["graphs_kept"] for s in steps_of(tmp_path / "run")
                if "graphs_kept" in s.values}  # fmt: skip
    assert list(readings) == [*range(16), *range(25, STEPS, 25)]
    assert set(readings.values()) == {0.0}


def test_a_leak_is_traced_for_one_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what autograd noted about the lines is not left in memory."""
    steps: list[int] = []
    harvest = retained_graphs.GraphRetention._harvest

    def counted(self: retained_graphs.GraphRetention, step: int, starts: Any) -> None:
        steps.append(step)
        harvest(self, step, starts)
        assert all("traceback_" not in node.metadata for node in retained_graphs.walk_graph(starts))

    monkeypatch.setattr(retained_graphs.GraphRetention, "_harvest", counted)
    watched(losses_in_a_list, run_dir=tmp_path / "run")
    assert len(steps) == 1
    assert len(events_of(tmp_path / "run", "retained")) == 1


@pytest.mark.slow
def test_the_watch_keeps_nothing_alive() -> None:
    """With the guard and without, the same number of tensors is there at the end of a step."""

    def max_tensors(guarded: Guarded) -> int:
        counts = []

        def body(net: Net, batch: Any, number: int) -> Tensor:
            loss = error_of(net, batch)
            loss.backward()
            if number in (19, 29, 39):
                counts.append(sum(issubclass(type(item), Tensor) for item in gc.get_objects()))
            return loss

        loop(guarded, body, steps=40)
        return max(counts) - counts[0]

    gc.collect()
    assert max_tensors(lambda *_: None) == 0
    assert max_tensors(Guard) <= 2


# The user's own anomaly mode.


@pytest.fixture
def _anomaly_off() -> Iterator[None]:
    yield
    torch.set_anomaly_enabled(False)


@pytest.mark.usefixtures("_anomaly_off")
@pytest.mark.slow
def test_the_users_own_anomaly_mode_stays_on() -> None:
    def training(guarded: Guarded) -> Any:
        kept = []

        def body(net: Net, batch: Any, number: int) -> Tensor:
            assert torch.is_anomaly_enabled()
            loss = error_of(net, batch)
            loss.backward()
            kept.append(loss)
            return loss

        return loop(guarded, body)

    torch.set_anomaly_enabled(True, check_nan=True)
    made: list[Guard] = []
    training(lambda model, optimizer: made.append(Guard(model, optimizer)) or made[0])
    assert torch.is_anomaly_check_nan_enabled()
    assert the(made[0], "HD803").where.line is None


@pytest.mark.usefixtures("_anomaly_off")
@pytest.mark.slow
def test_a_block_of_the_users_that_found_ours_on_does_not_leave_it_on() -> None:
    kept, on = [], []

    def training(guarded: Guarded) -> Any:
        def body(net: Net, batch: Any, number: int) -> Tensor:
            with torch.autograd.set_detect_anomaly(number % 2 == 0):
                loss = error_of(net, batch)
                loss.backward()
            kept.append(loss)
            on.append(torch.is_anomaly_enabled())
            return loss

        return loop(guarded, body)

    watched(training)
    assert not any(on[20:])


def test_a_guard_closed_while_it_traces_leaves_torch_as_it_was() -> None:
    net, kept = Net(), []
    optimizer = SGD(net.parameters(), lr=1e-3)
    guard = Guard(net, optimizer)
    for batch in guard(batches(30)):
        loss = error_of(net, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss)
        if torch.is_anomaly_enabled():
            break
    assert torch.is_anomaly_enabled()
    guard.close()
    assert not torch.is_anomaly_enabled()
