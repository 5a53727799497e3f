"""A captured incident in the user's own loop: everything as it was, and nothing moves."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn

from headway import Guard, Policy
from headway.explain.explanation import Explanation
from headway.explain.incident_file import incident_folder
from headway.explain.replay_outcome import ReplayOutcome
from headway.guard.script.script_guard import replay_call
from headway.rerun import in_script
from headway.torch_adapters import rng

TOLD = Explanation(7, "nonfinite", "deterministic", summary="It broke.", guilt="together")


class Left(BaseException):
    """What `done` raises: neither the loop nor anything in it may catch it by accident."""


@contextmanager
def leaving() -> Iterator[None]:
    """The loop is left in the middle."""
    try:
        yield
    except Left:
        return
    pytest.fail("the loop went on")


@pytest.fixture(autouse=True)
def _nobody_listens_any_more() -> Iterator[None]:
    """Guards of loops that were left in the middle go with the garbage."""
    yield
    gc.collect()


@pytest.fixture
def demand(tmp_path: Path) -> Iterator[Callable[..., list[ReplayOutcome]]]:
    """Write an incident and demand its rehearsal; the list is filled by `done`."""

    def make(told: Explanation = TOLD, **content: Any) -> list[ReplayOutcome]:
        given = {"rng": rng.capture(), "state": None, "capture": "batch", **content}
        found: list[ReplayOutcome] = []

        def done(rehearsed: ReplayOutcome) -> NoReturn:
            found.append(rehearsed)
            raise Left

        in_script.request_rerun(
            incident_folder.read_incident(incident_folder.write_incident(tmp_path, told, **given)),
            done,
        )
        return found

    yield make
    in_script.withdraw_request()


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    return {"models": [{"state": model.state_dict(), "unlisted": {}}], "others": {}}


def bad_batch() -> tuple[Tensor, Tensor]:
    [(x, y)] = batches(1, seed=5)
    x[3, 1] = math.inf
    return x, y


def run(guard: Guard, model: torch.nn.Module, optimizer: Any, loader: Any) -> None:
    with leaving():
        for x, y in guard(loader):
            optimizer.zero_grad()
            guard.backward(squared_error(model, (x, y)))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop"])
@pytest.mark.slow
def test_the_state_is_in_place_and_nothing_moves(demand: Any, kind: str) -> None:
    then = make_net(seed=3)
    then.norm.running_mean.fill_(4.0)
    found = demand(batches=batches(1), state=model_state(then))
    model = make_net()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.5, weight_decay=0.1)
    guard = Guard(model, optimizer)
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda *call: seen.append(state_of(model, optimizer)))
    run(guard, model, optimizer, batches(3, seed=9))
    assert_same(seen[0], state_of(then, optimizer))
    after = {name: value for name, value in model.state_dict().items() if "norm." not in name}
    assert_same(after, {name: then.state_dict()[name] for name in after})
    assert not optimizer.state
    assert [item.reproduces for item in found] == [False]
    assert found[0].outcome.norm > 1e-2, "as it was before clipping"
    assert guard.findings == []


# Incidents that a guard has written.


def plain_loop(guard: Guard, model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in guard(loader):
        optimizer.zero_grad()
        guard.backward(squared_error(model, (x, y.sqrt())))
        optimizer.step()


def accumulating(guard: Guard, model: Any, optimizer: Any, loader: Any) -> None:
    for number, (x, y) in enumerate(guard(loader)):
        (squared_error(model, (x, y.sqrt())) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def with_closure(guard: Guard, model: Any, optimizer: Any, loader: Any) -> None:
    for batch in guard(loader):

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            loss = squared_error(model, (batch[0], batch[1].sqrt()))
            loss.backward()
            return loss

        optimizer.step(closure)


def giving(guard: Guard, loader: Any) -> Iterator[Any]:
    """No loop body to be had: the training is in another function."""
    yield from guard(loader)


def through_a_generator(guard: Guard, model: Any, optimizer: Any, loader: Any) -> None:
    for x, y in giving(guard, loader):
        optimizer.zero_grad()
        squared_error(model, (x, y.sqrt())).backward()
        optimizer.step()


LOOPS = [plain_loop, accumulating, with_closure, through_a_generator]


@pytest.mark.parametrize(
    "loop", [plain_loop, *(pytest.param(loop, marks=pytest.mark.slow) for loop in LOOPS[1:])]
)
@pytest.mark.parametrize("capture", ["batch", "guilty-rows"])
@pytest.mark.slow
def test_what_a_guard_has_written_is_found_again(
    tmp_path: Path, loop: Callable[..., None], capture: str
) -> None:
    def train(seed: int, run_dir: Path) -> None:
        model = make_net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = Numbered()
        if seed == 0:
            data.y[43] = -1.0
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        with Guard(model, optimizer, run_dir=run_dir, policy=Policy(capture=capture)) as guard:
            loop(guard, model, optimizer, loader)

    train(0, tmp_path)
    [folder] = (tmp_path / "incidents").iterdir()
    recorded = incident_folder.read_incident(folder)
    assert recorded.explanation.samples == (43,)
    found: list[ReplayOutcome] = []

    def done(rehearsed: ReplayOutcome) -> NoReturn:
        found.append(rehearsed)
        raise Left

    in_script.request_rerun(recorded, done)
    try:
        with leaving():
            train(1, tmp_path / "other")
    finally:
        in_script.withdraw_request()
    [again] = found
    assert again.reproduces
    assert again.explanation is not None
    now, then = again.explanation.origin, recorded.explanation.origin
    assert now is not None
    assert then is not None
    assert then.kind == "sqrt-of-negative"
    for name in ("kind", "op", "place", "rows", "phase", "module", "reached"):
        assert getattr(now, name) == getattr(then, name), name
    assert again.explanation.samples == (43,)
    assert "data-set sample 43" in again.explanation.headline
    assert not (tmp_path / "other").exists()


class Numbered(torch.utils.data.Dataset[Any]):
    """Samples that a loader calls by their number; one can be spoiled."""

    def __init__(self) -> None:
        self.x, self.y = batches(1, size=80)[0]
        self.y = self.y.abs()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.x[at], self.y[at]


# Incidents of any kind.


@pytest.mark.slow
def test_it_reproduces(demand: Any) -> None:
    then = make_net()
    found = demand(batches=[bad_batch()], state=model_state(then))
    model = make_net(seed=1)
    optimizer = torch.optim.Adam(model.parameters())
    run(Guard(model, optimizer), model, optimizer, batches(3))
    assert found[0].reproduces
    assert found[0].said == "the loss is NaN"


@pytest.mark.slow
def test_a_bad_gradient_behind_a_good_loss(demand: Any) -> None:
    found = demand(batches=[torch.tensor([0.0, 4.0])], state=None)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    with leaving():
        for x in guard([torch.ones(2)]):
            guard.backward(model(x[:, None]).sqrt().sum())
            optimizer.step()
    assert found[0].reproduces
    assert found[0].said == "the loss is finite, but the gradient of weight is not"


def test_random_numbers_are_those_of_the_step(demand: Any) -> None:
    torch.manual_seed(11)
    found = demand(batches=batches(1), state=None)
    expected = torch.rand(3)
    model = make_net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    drawn = []
    with leaving():
        for x, y in guard(batches(2)):
            drawn.append(torch.rand(3))
            squared_error(model, (x, y)).backward()
    assert torch.equal(drawn[0], expected)
    assert found[0].outcome.complete


@pytest.mark.slow
def test_accumulation(demand: Any) -> None:
    found = demand(batches=[*batches(3), bad_batch()], state=None)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    with leaving():
        for number, (x, y) in enumerate(guard(batches(9))):
            (squared_error(model, (x, y)) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert len(found[0].outcome.losses) == 4
    assert found[0].reproduces


def test_losses_and_gradients_are_unscaled(demand: Any) -> None:
    found = demand(batches=batches(1), state=model_state(make_net()))
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    guard = Guard(model, optimizer, scaler=scaler)
    with leaving():
        for x, y in guard(batches(2)):
            guard.backward(squared_error(model, (x, y)))
            scaler.step(optimizer)
            scaler.update()
    plain = make_net()
    [(x, y)] = batches(1)
    loss = squared_error(plain, (x, y))
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    assert found[0].outcome.losses == [pytest.approx(float(loss.detach()))]
    assert found[0].outcome.norm == pytest.approx(float(norm), rel=1e-5)
    assert_same(dict(model.named_parameters()), dict(plain.named_parameters()))


@pytest.mark.slow
def test_closures(demand: Any) -> None:
    found = demand(batches=[bad_batch()], state=None)
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters())
    guard = Guard(model, optimizer)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with leaving():
        for x, y in guard(batches(2)):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = squared_error(model, (x, y))
                loss.backward()
                return loss

            optimizer.step(closure)
    assert found[0].reproduces
    assert len(found[0].outcome.losses) == 1
    assert_same(dict(model.named_parameters()), before)


@dataclass
class Named:
    x: Tensor
    y: Tensor


@pytest.mark.slow
def test_batches_are_of_the_loaders_class(demand: Any) -> None:
    demand(batches=[Named(*bad_batch())], state=None)
    model = make_net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    with leaving():
        for batch in guard([Named(*batches(1)[0])] * 2):
            seen.append(batch)
            squared_error(model, (batch.x, batch.y)).backward()
    [batch] = seen
    assert type(batch) is Named
    assert torch.isinf(batch.x).any()


@pytest.mark.parametrize(("limit", "reproduces"), [(1e-3, True), (1e6, False), (None, None)])
@pytest.mark.slow
def test_a_spike_is_judged_by_its_limit(demand: Any, limit: float, reproduces: bool) -> None:
    told = replace(TOLD, symptom="spike")
    found = demand(told, batches=batches(1), state=model_state(make_net()), limit=limit)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(Guard(model, optimizer), model, optimizer, batches(2))
    assert found[0].reproduces is reproduces


@pytest.mark.parametrize(("guilt", "reproduces"), [("together", None), ("batch", False)])
@pytest.mark.slow
def test_without_weights_a_cure_is_no_proof(
    demand: Any, guilt: Any, reproduces: bool | None
) -> None:
    found = demand(replace(TOLD, guilt=guilt), batches=batches(1), state=None)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(Guard(model, optimizer), model, optimizer, batches(2))
    assert found[0].reproduces is reproduces
    assert any("the weights" in note for note in found[0].notes)


def test_a_loop_that_comes_again_hears_the_same(demand: Any) -> None:
    found = demand(batches=[bad_batch()], state=None)
    model = make_net()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in guard(batches(3)):
        squared_error(model, (x, y)).backward()
        break
    seen = in_script.rerun_result()
    assert seen is not None
    assert seen.reproduces
    with leaving():
        next(iter(guard(batches(3))))
    assert found == [seen]


@pytest.mark.slow
def test_nothing_is_written_into_the_run(demand: Any, tmp_path: Path) -> None:
    found = demand(batches=batches(1), state=None)
    run_dir = tmp_path / "run"
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, run_dir=run_dir)
    assert guard.resume() == 0
    run(guard, model, optimizer, batches(2))
    guard.close()
    assert found
    assert not run_dir.exists()
    assert guard.run_dir is not None, "the script may ask for it all the same"


@pytest.mark.slow
def test_a_guard_in_a_with_block(demand: Any) -> None:
    found = demand(batches=[bad_batch()], state=None)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leaving(), Guard(model, optimizer) as guard:
        for x, y in guard(batches(3)):
            guard.backward(squared_error(model, (x, y)))
            optimizer.step()
    assert found[0].reproduces


@pytest.mark.slow
def test_a_function_in_a_test_of_the_users_own(tmp_path: Path) -> None:
    def build() -> tuple[nn.Module, Any]:
        return make_net(), squared_error

    def write(batch: Any) -> incident_folder.IncidentFolder:
        state, before = model_state(make_net(seed=2)), rng.capture()
        folder = incident_folder.write_incident(
            tmp_path, TOLD, batches=[batch], rng=before, state=state, capture="batch"
        )
        return incident_folder.read_incident(folder)

    assert replay_call(write(bad_batch()), build).reproduces is True
    fine = replay_call(write(batches(1)[0]), build)
    assert fine.reproduces is False
    loss = squared_error(make_net(seed=2), batches(1)[0])
    assert fine.outcome.losses == [float(loss.detach())]


def test_afterwards_guards_train_again(demand: Any) -> None:
    demand(batches=batches(1), state=None)
    in_script.withdraw_request()
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)
    for x, y in guard(batches(3)):
        guard.backward(squared_error(model, (x, y)))
        optimizer.step()
    assert guard.step == 3
