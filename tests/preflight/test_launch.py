"""A script that does not know of us is found, watched, stopped, and left as it was."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset

from headway.config import Settings
from headway.core.records import SetupRecord, StepRecord
from headway.guard.script.guarded_run import run_guarded
from headway.guard.script.launcher import ScriptLauncher
from headway.guard.script.step_limits import MAX_PASSES, StepLimitReached, StepLimits
from headway.policy import Policy
from headway.preflight.observer import Observer
from headway.preflight.runner import CheckOptions, CheckResult, run_check
from headway.torch_adapters import live_objects

Losses = list[float]


def data(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def plain_loop(losses: Losses, steps: int = 12) -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = data()
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def loader_loop(losses: Losses) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for _ in range(3):
        for x, y in DataLoader(TensorDataset(*data()), 16, shuffle=True):
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())


def workers_loop(losses: Losses) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(*data()), 16, shuffle=True, num_workers=2)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def two_optimizers(losses: Losses) -> None:
    maker, judge = nn.Linear(2, 6), nn.Linear(6, 1)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    x, _ = data()
    for _ in range(6):
        fake = maker(torch.randn(64, 2))
        real = F.binary_cross_entropy_with_logits(judge(x), torch.ones(64, 1))
        made = F.binary_cross_entropy_with_logits(judge(fake.detach()), torch.zeros(64, 1))
        of_judge.zero_grad()
        (real + made).backward()
        of_judge.step()
        fooled = F.binary_cross_entropy_with_logits(judge(fake), torch.ones(64, 1))
        of_maker.zero_grad()
        fooled.backward()
        of_maker.step()
        losses += [(real + made).item(), fooled.item()]


def scaled_and_clipped(losses: Losses) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = data()
    for _ in range(8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())


def closures(losses: Losses) -> None:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = data()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(4):
        optimizer.step(closure)


def line_search(losses: Losses) -> None:
    """Evaluations whose number and place depend on the numbers, and dropout in each of them."""
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 2))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, line_search_fn="strong_wolfe")
    x, y = data()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(4):
        losses.append(optimizer.step(closure).item())


STYLES = [
    plain_loop,
    loader_loop,
    workers_loop,
    two_optimizers,
    scaled_and_clipped,
    closures,
    line_search,
]


@pytest.mark.parametrize("style", STYLES)
def test_a_watched_run_is_the_same_bit_for_bit(style: Callable[[Losses], None]) -> None:
    plain: Losses = []
    watched: Losses = []
    torch.manual_seed(0)
    style(plain)
    after = torch.get_rng_state()
    torch.manual_seed(0)
    done = run_check(lambda: style(watched), max_steps=None)
    assert watched == plain
    assert torch.equal(torch.get_rng_state(), after)
    assert done.error is None
    assert not done.stopped
    assert done.steps >= 4


@pytest.mark.parametrize("style", STYLES)
def test_it_stops_after_so_many_steps(style: Callable[[Losses], None]) -> None:
    torch.manual_seed(0)
    done = run_check(lambda: style([]), max_steps=3)
    assert done.stopped
    assert done.steps == 3
    assert done.error is None


def test_a_run_that_nothing_can_save_was_stopped_and_did_not_end() -> None:
    def poisoned() -> None:
        model = classifier().half()
        optimizer = torch.optim.Adam(model.parameters())  # its eps of 1e-8 is 0 in fp16
        x, y = data()
        for _ in range(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x.half() * 1e-3), y).backward()
            optimizer.step()

    done = run_check(poisoned, max_steps=40)
    assert done.stopped
    assert done.steps < 40
    assert done.error is None


def test_torch_is_as_before() -> None:
    def looks() -> dict[str, Any]:
        return {
            "backward": torch.autograd.backward,
            "iter": DataLoader.__iter__,
            "init": Optimizer.__init__,
            "load": nn.Module.load_state_dict,
            "pre": len(_global_optimizer_pre_hooks),
            "post": len(_global_optimizer_post_hooks),
            "forward": len(torch.nn.modules.module._global_forward_hooks),
            "modes": torch._C._len_torch_function_stack(),
            "stance": torch._dynamo.eval_frame._stance.stance,
        }

    before = looks()
    run_check(lambda: plain_loop([]), max_steps=3)
    assert looks() == before

    def crash() -> None:
        plain_loop([], steps=2)
        raise ValueError("mine")

    done = run_check(crash)
    assert isinstance(done.error, ValueError)
    assert looks() == before


def test_a_loop_that_swallows_everything_stops_all_the_same() -> None:
    seen = []

    def stubborn() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = data()
        for step in range(50):
            try:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            except Exception:
                continue
            seen.append(step)

    assert run_check(stubborn, max_steps=3).stopped
    assert seen == [0, 1]


def test_seconds_are_a_limit_too() -> None:
    def endless() -> None:
        while True:
            pass

    done = run_check(endless, how=CheckOptions(max_steps=None, max_seconds=0.3))
    assert done.stopped
    assert done.unreached is not None
    assert "--max-seconds" in str(done.unreached)


def why(work: Callable[[], None]) -> str:
    gc.collect()  # optimizers of other tests
    done: CheckResult = run_check(work)
    assert done.steps == 0
    assert done.unreached is not None
    return str(done.unreached)


def test_seconds_are_a_limit_without_alarm_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored in a background job
    with monkeypatch.context() as windows:
        windows.delattr(signal, "setitimer")
        test_seconds_are_a_limit_too()
    assert signal.getsignal(signal.SIGINT) is before


def test_why_no_step_was_reached() -> None:
    def nothing() -> None:
        pass

    def backward_only() -> None:
        model = classifier()
        x, y = data()
        for _ in range(2):
            F.cross_entropy(model(x), y).backward()

    def optimizer_only() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in []:
            optimizer.step()
        keep.append(optimizer)

    def crashes() -> None:
        raise KeyError("config")

    keep: list[Optimizer] = []
    assert "without creating a torch optimizer" in why(nothing)
    assert "backward() ran 2 times, but no optimizer.step()" in why(backward_only)
    assert "backward() was never called" in why(optimizer_only)
    keep.clear()
    gc.collect()
    assert "backward() was never called" in why(lambda: optimizer_gone()), "it need not be alive"
    assert "KeyError before its first step" in why(crashes)


def optimizer_gone() -> None:
    torch.optim.SGD(classifier().parameters(), lr=0.1)


def train_by_hand(steps: int, *, softmax: bool = False) -> None:
    model = classifier()
    x, y = data()
    for _ in range(steps):
        model.zero_grad()
        out = model(x)
        F.cross_entropy(out.softmax(-1) if softmax else out, y).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.01)


def test_weights_updated_by_hand_are_checked_at_each_backward_pass() -> None:
    gc.collect()
    done = run_check(lambda: train_by_hand(50, softmax=True), max_steps=8)
    assert done.stopped
    assert done.passes == 8, "backward passes count as steps do"
    assert done.limit == "--max-steps"
    assert done.report.looked_at == "8 backward passes"
    assert "updated by hand" in str(done.unreached)
    assert {"HD110", "HD003"} <= {item.code for item in done.report.findings}
    [finding] = [item for item in done.report.findings if item.code == "HD003"]
    assert finding.severity.name == "INFO"


def test_healthy_updates_by_hand_find_nothing() -> None:
    gc.collect()
    done = run_check(lambda: train_by_hand(30), max_steps=20)
    assert [item.code for item in done.report.findings if item.severity.name != "INFO"] == []
    assert done.report.verdict == "healthy"


def test_updates_by_hand_stay_bit_identical() -> None:
    def result() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = classifier()
        x, y = data()
        for _ in range(12):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.01)
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain, under = result(), []
    gc.collect()
    done = run_guarded(lambda: under.extend(result()), settings=Settings())
    assert all(torch.equal(one, other) for one, other in zip(plain, under, strict=True))
    assert "updated by hand" in str(done.unreached)
    [finding] = done.report.findings
    assert (finding.code, finding.severity.name) == ("HD003", "ERROR")


def test_a_script_that_never_steps_is_stopped_too() -> None:
    def endless() -> None:
        model = classifier()
        x, y = data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

    launch = ScriptLauncher(settings=Settings(), policy=Policy(), limits=StepLimits(max_steps=3))
    with launch, pytest.raises(StepLimitReached):
        endless()
    launch.close()
    assert launch.backwards == MAX_PASSES
    assert launch.limits.name == f"{MAX_PASSES} backward passes without a step"


def test_objects_are_searched_once_without_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    plain = live_objects.find_optimizers
    monkeypatch.setattr(
        live_objects, "find_optimizers", lambda **how: searched.append(1) or plain(**how)
    )
    gc.collect()
    run_guarded(lambda: train_by_hand(40), settings=Settings())
    assert len(searched) == 1


def test_an_optimizer_after_some_passes_by_hand_is_guarded() -> None:
    def work() -> None:
        train_by_hand(5)
        plain_loop([], steps=3)

    gc.collect()
    done = run_guarded(work, settings=Settings())
    assert (done.steps, done.unreached) == (3, None)


def test_an_optimizer_that_is_unpickled_is_found() -> None:
    def work() -> None:
        model = classifier()
        made = pickle.dumps((model, torch.optim.SGD(model.parameters(), lr=0.1)))
        x, y = data()
        F.cross_entropy(model(x), y).backward()
        model, optimizer = pickle.loads(made)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    done = run_guarded(work, settings=Settings())
    assert (done.steps, done.unreached) == (3, None)


def test_an_optimizer_that_comes_later_is_guarded_too() -> None:
    launch = ScriptLauncher(settings=Settings(), policy=Policy())
    with launch:
        plain_loop([], steps=3)
        plain_loop([], steps=4)
    launch.close()
    assert sorted(launch.steps.values()) == [3, 4]
    assert launch.guard is not None
    assert launch.guard.step == 7


def test_the_innermost_call_is_named_by_its_line() -> None:
    model = nn.Linear(6, 2)

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = data()
        for _ in range(4):
            F.cross_entropy(model(x), y).backward()  # this line
            optimizer.step()

    done = run_check(train, max_steps=4)
    [found] = [item for item in done.report.findings if item.code == "HD206"]
    assert found.where.file == __file__
    with open(__file__, encoding="utf-8") as file:
        assert file.read().splitlines()[(found.where.line or 0) - 1].endswith("# this line")


def test_stopping_is_no_exception_of_the_scripts() -> None:
    assert not issubclass(StepLimitReached, Exception)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_is_not_listened_to() -> None:
    heard: list[int] = []

    def work() -> None:
        mode = torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1)
        assert mode._hub.listening
        child = os.fork()
        if child == 0:
            os._exit(int(mode._hub.listening))
        heard.append(os.waitpid(child, 0)[1])

    run_check(work, max_steps=1)
    assert heard == [0]


def test_the_first_loss_is_recorded_unscaled() -> None:
    """The guard is made by the backward pass of a loss that was multiplied before."""
    seen: list[Any] = []

    def work() -> None:
        model, (x, y) = classifier(), data()
        optimizer = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

    run_check(work, max_steps=None, on_record=seen.append)
    steps = [record.values for record in seen if isinstance(record, StepRecord)]
    assert [values["loss_scale"] for values in steps] == [4096.0, 4096.0]
    assert all(values["loss"] < 2 for values in steps)
    facts = [r.facts for r in seen if isinstance(r, SetupRecord) and r.topic == "precision"]
    assert [item["scaler"] for item in facts] == [True]


def test_an_observer_that_fails_takes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Observer):
        def backward_begins(self, roots: Any) -> None:
            raise NotImplementedError("no kernel for SparseCPU\n'aten::equal' is registered for …")

    monkeypatch.delenv("HEADWAY_STRICT", raising=False)
    done = run_check(lambda: plain_loop([], steps=2), observers=[Failing])
    assert list(done.notes) == [
        "an observer failed and was removed: Failing: NotImplementedError: no kernel for SparseCPU"
    ]


def bad_sample_loop() -> None:
    torch.manual_seed(0)
    x, y = data(96)
    x[70, 3] = float("nan")
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    for _ in range(3):
        for one, two in loader:
            loss = F.cross_entropy(model(one), two)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_loader_of_accelerate_reads_ahead_and_its_sample_is_named_all_the_same() -> None:
    accelerate = pytest.importorskip("accelerate")

    def work() -> None:
        torch.manual_seed(0)
        x, y = data(96)
        x[70, 3] = float("nan")
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(2):
            for one, two in loader:
                loss = F.cross_entropy(model(one), two)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()

    report = run_guarded(work, settings=Settings()).report
    (finding,) = [found for found in report.findings if found.code == "HD501"]
    assert finding.message.startswith("data-set sample 70 contains 1 NaN, at feature 3")
    assert finding.count == 2


@pytest.mark.parametrize("under", ["run", "check"])
def test_one_bad_sample_is_one_finding_that_names_it_in_the_data_set(under: str) -> None:
    if under == "check":
        report = run_check(bad_sample_loop, how=CheckOptions(max_steps=100)).report
    else:
        report = run_guarded(bad_sample_loop, settings=Settings()).report
    (finding,) = [found for found in report.findings if found.code == "HD501"]
    assert finding.message.startswith("data-set sample 70 contains 1 NaN, at feature 3 (batch[0]")
    assert finding.count == 3
    assert len(finding.occurred_at) == 3
    assert "Fix or remove data-set sample 70" in [remedy.text for remedy in finding.remedies]
