"""A bad step is run again, explained, and leaves no trace: later steps are as if merely skipped."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Guard, Policy, Snapshots
from headway.explain.explanation import Explanation

BAD, STEPS, SAMPLE = 12, 20, 3


class Reader(nn.Module):
    """Dropout, BatchNorm, and a logarithm that a sample of zeros breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(12, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        strength = x.abs().sum(dim=1, keepdim=True)
        hidden = self.drop(torch.relu(self.norm(self.inner(x))))
        return self.head(hidden) * torch.log(strength)  # born here


BORN = next(
    number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    if line.endswith("# born here")
)


def data(bad: int | None = BAD) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = [
        (torch.randn(8, 6, generator=generator), torch.randn(8, 1, generator=generator))
        for _ in range(STEPS)
    ]
    if bad is not None:
        found[bad][0][SAMPLE] = 0.0
    return found


@dataclass
class Run:
    """A training, and everything a replay might have left its trace in."""

    model: Reader
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    guard: Guard | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def everything(self) -> dict[str, Any]:
        return {
            **state_of(self.model, self.optimizer),
            "losses": self.losses,
            "calls": self.model.calls,
            **self.extra,
        }

    @property
    def explanation(self) -> Explanation:
        assert self.guard is not None
        assert len(self.guard.explanations) == 1
        return self.guard.explanations[0]


def start(make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Run:
    torch.manual_seed(0)
    model = Reader()
    return Run(model, make(model.parameters(), lr=1e-2))


def plain(run: Run, guard: Guard) -> None:
    for x, y in guard(data()):
        loss = F.mse_loss(run.model(x), y)
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.losses.append(loss.item())


def counted(run: Run, guard: Guard) -> None:
    schedule = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.05, total_steps=2 * STEPS)
    total, history = 0.0, {"train": {"loss": run.losses}}
    left: list[Any] = []
    for i, batch in enumerate(guard(data())):
        x, y = batch
        x = x * 1.0
        left.append([p.grad.clone() for p in run.model.parameters() if p.grad is not None])
        run.optimizer.zero_grad()
        loss = F.mse_loss(run.model(x), y)
        guard.backward(loss, error=loss)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        schedule.step()
        total += loss.item() if i != BAD else 0.0
        history["train"]["loss"].append(loss.item())
    run.extra = {"total": total, "schedule": schedule.state_dict(), "left": left}


def averaged(run: Run, guard: Guard) -> None:
    average = torch.optim.swa_utils.AveragedModel(run.model, use_buffers=True)
    for x, y in guard(data()):
        F.mse_loss(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=False)
        average.update_parameters(run.model)
    run.extra = {"average": dict(average.state_dict())}


def accumulated(run: Run, guard: Guard) -> None:
    for i, (x, y) in enumerate(guard(data())):
        loss = F.mse_loss(run.model(x), y) / 4
        loss.backward()
        run.losses.append(loss.item())
        if (i + 1) % 4 == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()


def generated(run: Run, guard: Guard) -> None:
    def steps() -> Iterator[float]:
        for x, y in guard(data()):
            loss = F.mse_loss(run.model(x), y)
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            if not guard.replaying:
                yield loss.item()

    run.losses.extend(steps())


def scaled(run: Run, guard: Guard) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)
    for x, y in guard(data()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(run.model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(run.optimizer)
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
        run.losses.append(loss.item())
    run.extra = {"scaler": scaler.state_dict()}


def two_models(run: Run, guard: Guard) -> None:
    """An average made by hand, and another model with an optimizer, none known to the guard."""
    ema = copy.deepcopy(run.model)
    shadow = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    critic = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other = torch.optim.Adam(critic.parameters(), lr=1e-2)
    counts = torch.zeros(3)
    for x, y in guard(data()):
        predicted = run.model(x)
        judged = critic(torch.nan_to_num(predicted.detach(), posinf=1.0, neginf=1.0)).mean()
        judged.backward()
        other.step()
        other.zero_grad()
        F.mse_loss(predicted, y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        counts += 1
        with torch.no_grad():
            for name, p in run.model.named_parameters():
                shadow[name].lerp_(p, 0.1)
                ema.get_parameter(name).mul_(0.9).add_(p, alpha=0.1)
    run.extra = {
        "ema": dict(ema.state_dict()),
        "shadow": shadow,
        "critic": state_of(critic, other),
        "counts": counts,
    }


LOOPS = [plain, counted, averaged, accumulated, generated, scaled, two_models]


def go(loop: Callable[[Run, Guard], None], *, replay: bool, **options: Any) -> Run:
    run = start(options.pop("make", torch.optim.AdamW))
    policy = Policy(replay=replay, **options.pop("policy", {}))
    with Guard(run.model, run.optimizer, policy=policy, **options) as guard:
        run.guard = guard
        loop(run, guard)
        run.extra["random"] = torch.rand(3)
    return run


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_run_goes_on_as_if_the_step_had_merely_been_skipped(
    loop: Callable[[Run, Guard], None],
) -> None:
    told, silent = go(loop, replay=True), go(loop, replay=False)
    assert_same(told.everything(), silent.everything())
    origin = told.explanation.origin
    assert origin is not None
    assert origin.kind == "log-of-zero"
    assert origin.place is not None
    assert (origin.place.file, origin.place.line, origin.op) == (__file__, BORN, "log")
    assert origin.rows == (SAMPLE,)
    assert told.explanation.cure is not None


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "LBFGS", "Rprop"])
def test_whatever_the_optimizer(name: str) -> None:
    make = getattr(torch.optim, name)

    def loop(run: Run, guard: Guard) -> None:
        for x, y in guard(data()):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                run.optimizer.zero_grad()
                loss = F.mse_loss(run.model(x), y)
                loss.backward()
                return loss

            run.losses.append(run.optimizer.step(closure).item())

    told, silent = go(loop, replay=True, make=make), go(loop, replay=False, make=make)
    assert_same(told.everything(), silent.everything())
    origin = told.explanation.origin
    assert origin is not None
    assert origin.place is not None
    assert origin.place.line == BORN


def test_a_healthy_run_is_not_looked_into(tmp_path: Path) -> None:
    run = start()
    with Guard(run.model, run.optimizer, run_dir=tmp_path) as guard:
        for x, y in guard(data(bad=None)):
            F.mse_loss(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        assert guard.explanations == []
    assert not (tmp_path / "incidents").exists()


def test_findings_name_the_line_the_sample_and_the_cure() -> None:
    run = go(plain, replay=True)
    assert run.guard is not None
    (finding,) = [item for item in run.guard.findings if item.code == "HD101"]
    where = finding.where
    assert (where.file, where.line, where.op, where.sample) == (__file__, BORN, "log", SAMPLE)
    assert finding.remedies[0].tested
    assert finding.remedies[0].cured
    assert "log" in finding.message.lower()
    assert finding.evidence["source"].endswith("# born here")


def test_what_is_read_back_from_the_run_directory_is_the_same(tmp_path: Path) -> None:
    import headway

    run = go(plain, replay=True, run_dir=tmp_path)
    assert run.guard is not None
    told = [finding.to_dict() for finding in run.guard.findings]
    assert [finding.to_dict() for finding in headway.diagnose(tmp_path).findings] == told
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == [f"1-step{BAD}"]


@pytest.mark.slow
def test_the_random_numbers_of_the_step_come_again() -> None:
    """One draw in twenty is bad: another draw would make it look transient."""
    run = start()
    with Guard(run.model, run.optimizer, policy=Policy(replay_gap=1)) as guard:
        for x, y in guard(data(bad=None) * 3):
            luck = (torch.rand(()) > 0.05).float()
            (F.mse_loss(run.model(x), y) / luck).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        natures = [item.nature for item in guard.explanations]
    assert natures
    assert set(natures) == {"deterministic"}


def test_a_fault_that_comes_once_is_transient() -> None:
    class Flaky(Reader):
        def forward(self, x: Tensor) -> Tensor:
            wrong = math.nan if self.calls == BAD else 1.0
            self.calls += 1
            return self.head(self.drop(torch.relu(self.norm(self.inner(x))))) * wrong

    torch.manual_seed(0)
    model = Flaky()
    run = Run(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    with Guard(run.model, run.optimizer) as guard:
        for x, y in guard(data(bad=None)):
            F.mse_loss(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        (explanation,) = guard.explanations
    assert explanation.nature == "transient"
    assert explanation.origins == ()
    assert "hardware" in explanation.headline
    assert not any(trial.tried == "cured" for trial in explanation.trials)
    assert model.calls == STEPS


def test_a_bad_compiled_kernel_is_the_compilers() -> None:
    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            bad = any(isinstance(a, Tensor) and a.shape == (8, 6) and a[0, 0] > 50 for a in args)
            return tuple(out * math.nan if bad else out for out in graph.forward(*args))

        return run

    torch._dynamo.reset()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    model = torch.compile(inner, backend=backend)
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-2)
    batches = data(bad=None)
    batches[BAD][0][0, 0] = 99.0
    with Guard(inner, optimizer) as guard:
        for x, y in guard(batches):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        (explanation,) = guard.explanations
    torch._dynamo.reset()
    assert explanation.nature == "compiler"
    assert explanation.cure is not None
    assert explanation.cure.key == "eager"


def always_bad(run: Run, guard: Guard, steps: int = 60) -> None:
    x, y = data()[BAD]
    for _ in guard(range(steps)):
        F.mse_loss(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"replays": 2, "replay_gap": 10}, [0, 10]),
        ({"replays": 9, "replay_gap": 25}, [0, 25, 50]),
        ({"replays": 0}, []),
        ({"replay": False}, []),
    ],
)
def test_only_so_many_steps_are_looked_into(options: dict[str, Any], steps: list[int]) -> None:
    run = start()
    policy = Policy(halt=False, back_offs=0, roll_backs=0, **options)
    with Guard(run.model, run.optimizer, policy=policy) as guard:
        always_bad(run, guard)
        assert [item.step for item in guard.explanations] == steps


def changing(run: Run, guard: Guard, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in guard(batches):
        x.mul_(2.0)
        F.mse_loss(run.model(x), y).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()


def test_the_first_batch_changed_in_place_is_not_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start()
    with Guard(run.model, run.optimizer) as guard:
        changing(run, guard, data(bad=0))
        assert guard.explanations == []
    assert "changes its batches in place" in caplog.text


def test_a_loop_that_changes_its_batches_is_known_for_it_and_each_is_copied() -> None:
    run, batches = start(), data()
    doubled = [x * 2.0 for x, _ in batches]
    with Guard(run.model, run.optimizer) as guard:
        changing(run, guard, batches)
        (told,) = guard.explanations
    assert told.origin is not None
    assert told.origin.rows == (SAMPLE,)
    assert told.cure is not None
    for (x, _), once in zip(batches, doubled, strict=True):
        assert torch.equal(x, once)  # and left as the loop left it


def test_what_the_loop_puts_into_its_batch_is_not_called_the_data_sets() -> None:
    run = start()
    with Guard(run.model, run.optimizer) as guard:
        for x, y in guard(data()):
            x.log_()
            F.mse_loss(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        assert "HD501" not in {finding.code for finding in guard.findings}


def test_an_experiment_that_raises_ends_nothing() -> None:
    """Whatever a trial does to the step, the training goes on."""
    run = start()
    with Guard(run.model, run.optimizer) as guard:
        for x, y in guard(data()):
            if guard.replaying:
                raise KeyError("only in a replay")
            F.mse_loss(run.model(x), y).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        (explanation,) = guard.explanations
        assert guard.step == STEPS
    assert explanation.nature == "unknown"
    assert "KeyError" in explanation.headline


class Kernel(nn.Module):
    """Weights and batch must both be large for it to overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(self.weight * x)


@pytest.mark.parametrize(
    ("weight", "value", "guilt"),
    [(1.0, 200.0, "batch"), (99.0, 1.0, "weights"), (20.0, 20.0, "together")],
)
def test_whose_guilt_it_is(weight: float, value: float, guilt: str) -> None:
    model = Kernel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    snapshots = Snapshots(every=4)

    def loader() -> Iterator[Tensor]:
        yield from torch.full((5, 4), 0.9)
        with torch.no_grad():  # the state of step 4 is still in memory
            model.weight.fill_(weight)
        yield from (torch.full((4,), 0.9), torch.full((4,), value))

    with Guard(model, optimizer, snapshots=snapshots, policy=Policy(hold_spikes=False)) as guard:
        for x in guard(loader()):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        (explanation,) = guard.explanations
    assert explanation.guilt == guilt
    assert model.weight.item() == weight


def test_applied_cures_stay_until_undone() -> None:
    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.head = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(x)))

    torch.manual_seed(0)
    model = Loud()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = data(bad=None)
    for at in range(BAD, STEPS):
        batches[at] = (batches[at][0] * 1e6, batches[at][1])
    losses = []
    with Guard(model, optimizer, policy=Policy(cure="apply", hold_spikes=False)) as guard:
        for x, y in guard(batches):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        (cure,) = guard.cures
        assert [action.step for action in guard.actions] == [BAD]
    assert cure.key == "fp32-island"
    assert "inner" in cure.text
    assert all(map(math.isfinite, losses[BAD + 1 :]))
    cure.undo()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not torch.isfinite(model(batches[BAD][0])).all()


@pytest.mark.parametrize("loop", [plain, generated], ids=lambda loop: loop.__name__)
def test_a_defect_of_ours_costs_the_explanation_and_nothing_else(
    loop: Callable[[Run, Guard], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("a defect")

    silent = go(loop, replay=False)
    monkeypatch.delenv("HEADWAY_STRICT", raising=False)
    monkeypatch.setattr("headway.explain.locate.find_origins", broken)
    told = go(loop, replay=True, policy={"replay_gap": 1})
    assert_same(told.everything(), silent.everything())
    assert told.guard is not None
    assert told.guard.explanations == []
    assert [action.step for action in told.guard.actions] == [BAD]
    assert "re-running a bad step failed (ZeroDivisionError: a defect)" in caplog.text
    assert "switched itself off" not in caplog.text
