"""Findings name the line that made it so: construction, initialisation, cut, switch, schedule."""

from __future__ import annotations

import gc
import inspect
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from headway.core.findings import Severity
from headway.preflight.observer import Observer
from headway.preflight.runner import CheckResult
from headway.preflight.runner import run_check as watch_unasked


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    torch.manual_seed(0)


def watch(work: Callable[[], Any], **how: Any) -> CheckResult:
    gc.collect()  # an optimizer of the test before would be taken for one of this script
    checked = watch_unasked(work, **how)
    assert checked.error is None
    return checked


def line_of(checked: CheckResult, code: str) -> str:
    """The text of the line that the first finding of this code names."""
    found = [item for item in checked.report.findings if item.code == code]
    assert found, [item.code for item in checked.report.findings]
    where = found[0].where
    assert where.file is not None
    with open(where.file, encoding="utf-8") as source:
        return source.read().splitlines()[(where.line or 0) - 1].strip()


def train(model: nn.Module, steps: int = 12, optimizer: Any = None, **inputs: Any) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        x = inputs["x"]() if "x" in inputs else torch.randn(16, 6)
        y = torch.randint(0, 3, (x.shape[0],))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class Cut(nn.Module):
    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.how = how
        self.log: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        self.log.append(h.mean().item())  # only looked at
        return self.head(self.how(h))


def through_data(h: Tensor) -> Tensor:
    return h.data * 2  # cut here


def through_numpy(h: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(h.detach().numpy()))  # cut here


def through_hard_choice(h: Tensor) -> Tensor:
    return F.one_hot(h.argmax(1), 8).float()  # cut here


@pytest.mark.parametrize("how", [through_data, through_numpy, through_hard_choice])
def test_the_line_that_cuts_the_graph(how: Callable[[Tensor], Tensor]) -> None:
    assert line_of(watch(lambda: train(Cut(how)), max_steps=12), "HD204").endswith("# cut here")


def test_the_call_under_no_grad() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.body(x)
            return self.head(h)

    checked = watch(lambda: train(Net()), max_steps=12)
    assert line_of(checked, "HD204") == "h = self.body(x)"


def test_a_module_that_is_never_called_is_information() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.mixer = nn.MultiheadAttention(8, 2)  # its out_proj is used, never called
            self.spare = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            return self.head(h + self.mixer(h, h, h)[0])

    checked = watch(lambda: train(Net(), steps=40), max_steps=40)
    found = [item for item in checked.report.findings if item.code == "HD204"]
    assert [(item.severity, item.where.module) for item in found] == [(Severity.INFO, "spare")]
    assert "never called" in found[0].message
    assert line_of(checked, "HD204").startswith("self.spare =")


class Wrapped(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def test_a_layer_that_runs_without_its_wrapper() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.layers = [self.body, self.head]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x

    def work() -> None:
        model = Net()
        model.body = Wrapped(model.body)  # type: ignore[assignment]  # bypassed
        trained = [p for p in model.parameters() if p.requires_grad]
        train(model, optimizer=torch.optim.SGD(trained, 0.01))

    checked = watch(work, max_steps=12)
    assert line_of(checked, "HD204").endswith("# bypassed")
    [found] = [item for item in checked.report.findings if item.code == "HD204"]
    assert "body is never called: the model still runs the module that" in found.message


def test_a_result_that_the_loss_does_not_use() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side, self.more = nn.Linear(6, 8), nn.Linear(8, 8)
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            extra = self.side(x)
            extra = torch.tanh(self.more(extra))  # not used
            return self.head(torch.relu(self.body(x)))  # type: ignore[no-any-return]

    checked = watch(lambda: train(Net()), max_steps=12)
    assert line_of(checked, "HD204").endswith("# not used")


def test_a_layer_that_is_bypassed_is_an_error() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.layers = (self.body, self.head)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def work() -> None:
        model = Net()
        model.body = nn.Linear(6, 8)
        train(model, steps=12)

    checked = watch(work, max_steps=12)
    found = [item for item in checked.report.findings if item.code == "HD204"]
    assert [item.severity for item in found] == [Severity.ERROR]
    assert line_of(checked, "HD204") == "model.body = nn.Linear(6, 8)"


def test_zero_grad_in_the_wrong_place() -> None:
    def work() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(8):
                x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    assert line_of(watch(work, max_steps=12), "HD206") == "optimizer.zero_grad()"


def test_the_line_that_replaced_a_weight() -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        weight_norm(model[0])
        train(model, optimizer=optimizer)

    assert line_of(watch(work), "HD402") == "weight_norm(model[0])"


def test_the_line_that_put_an_adapter_into_the_model() -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            added: torch.Tensor = self.base(x) + self.up(self.down(x))
            return added

    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        model[0] = Adapted(model[0])
        train(model, optimizer=optimizer)

    assert line_of(watch(work), "HD401") == "model[0] = Adapted(model[0])"


def test_the_line_that_initialised() -> None:
    def work() -> None:
        model = nn.Sequential(
            *(part for _ in range(5) for part in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 3)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 2.0)
        train(model, x=lambda: torch.randn(16, 32), steps=3)

    assert line_of(watch(work), "HD316") == "parameter.normal_(0, 2.0)"


def test_the_line_that_initialised_again_after_loading() -> None:
    def again(model: nn.Module) -> None:
        for part in model.modules():
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight)
                nn.init.zeros_(part.bias)

    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
        again(model)
        train(model, steps=3)

    assert line_of(watch(work), "HD706") == "again(model)"


def test_the_layer_that_takes_time_first() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x)[:, -1])

    checked = watch(lambda: train(Net(), x=lambda: torch.randn(16, 5, 8)))
    assert line_of(checked, "HD210").startswith("layer = nn.TransformerEncoderLayer(")


def test_the_line_that_switched_to_evaluation() -> None:
    def validate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            model(torch.randn(4, 6))

    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        validate(model)
        train(model)

    assert line_of(watch(work), "HD902") == "model.eval()"


def test_the_line_that_ends_the_evaluation_mode_too_early() -> None:
    def work(*, ends: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            model.train()
            train(model, 4, optimizer)
            model.eval()
            if ends:
                model.train(True)
            with torch.no_grad():
                for _ in range(2):
                    F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))

    assert line_of(watch(partial(work, ends=True), max_steps=12), "HD903") == "model.train(True)"
    quiet = watch(partial(work, ends=False), max_steps=12)
    assert "HD903" not in {item.code for item in quiet.report.findings}


def test_functional_dropout_that_does_not_follow_the_mode() -> None:
    class Net(nn.Module):
        def __init__(self, *, follows: bool) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
            self.follows = follows

        def forward(self, x: Tensor) -> Tensor:
            on = self.training if self.follows else True
            return self.head(F.dropout(torch.relu(self.body(x)), 0.5, on))

    def work(*, follows: bool) -> None:
        model = Net(follows=follows)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            model.train()
            train(model, 4, optimizer)
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))

    checked = watch(partial(work, follows=False), max_steps=12)
    assert "F.dropout" in line_of(checked, "HD903")
    quiet = watch(partial(work, follows=True), max_steps=12)
    assert "HD903" not in {item.code for item in quiet.report.findings}


class CopyWriter(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2:
                    mine = p.clone()
                    mine.sub_(p.grad, alpha=group["lr"])
                else:
                    p.sub_(p.grad, alpha=group["lr"])


def test_the_line_that_makes_the_copy_an_optimizer_writes_to() -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        train(model, optimizer=CopyWriter(model.parameters(), 0.05))

    assert line_of(watch(work), "HD306") == "mine = p.clone()"


def resumed(rate: Callable[[int, int], float]) -> Callable[[], None]:
    """Two sittings, the second from the checkpoint of the first; the rate is set by hand."""

    def sitting(file: io.BytesIO, first: int, until: int) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        if first:
            file.seek(0)
            saved = torch.load(file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        for step in range(until - first):
            optimizer.param_groups[0]["lr"] = rate(first, step)
            train(model, 1, optimizer)
        file.seek(0)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)

    def work() -> None:
        file = io.BytesIO()
        sitting(file, 0, 20)
        sitting(file, 20, 30)

    return work


def linear(step: int) -> float:
    return 0.01 * (1 - step / 32)


def test_a_schedule_made_by_hand_that_begins_anew() -> None:
    checked = watch(resumed(lambda first, step: linear(step)), max_steps=28)
    assert "rate(first, step)" in line_of(checked, "HD406")


@pytest.mark.parametrize(
    "rate",
    [
        lambda first, step: linear(first + step),  # goes on
        lambda first, step: linear(step) if not first else 0.01,  # a rate of its own
        lambda first, step: 0.01 * (1 - (step + first) % 10 / 10),  # restarts, one at the resume
    ],
)
def test_rates_by_hand_that_are_meant(rate: Callable[[int, int], float]) -> None:
    checked = watch(resumed(rate), max_steps=28)
    assert "HD406" not in {item.code for item in checked.report.findings}


class Stage:
    """Layers in an object that is no module, and is called."""

    def __init__(self) -> None:
        self.layers = {"in": nn.Linear(8, 8), "out": nn.Linear(8, 8)}

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.layers["out"](torch.relu(self.layers["in"](x)))


def closure() -> Callable[[Tensor], Tensor]:
    layer = nn.Linear(8, 8)
    return lambda x: torch.relu(layer(x))


@pytest.mark.parametrize("make", [Stage, closure, lambda: partial(F.relu, inplace=False)])
def test_layers_in_things_that_are_called(make: Callable[[], Any]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.stages = [make() for _ in range(2)]

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            for stage in self.stages:
                x = stage(x)
            return self.head(x)

    checked = watch(lambda: train(Net()), max_steps=12)
    hidden = make is Stage or make is closure
    assert (checked.report.causes[:1] and checked.report.causes[0].code == "HD906") == hidden or (
        not hidden and "HD906" not in {item.code for item in checked.report.findings}
    )
    if hidden:
        assert "self.stages = [" in line_of(checked, "HD906")


class LastStep(nn.Module):
    """Reads where the reverse direction has made one step only."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        read: Tensor = self.head(out[:, -1])
        return read


def test_the_line_that_reads_the_last_step_of_a_bidirectional_layer() -> None:
    checked = watch(lambda: train(LastStep(), x=lambda: torch.randn(16, 5, 6)), max_steps=12)
    assert line_of(checked, "HD205") == "read: Tensor = self.head(out[:, -1])"
    found = next(item for item in checked.report.findings if item.code == "HD205")
    assert "h_n[-1]" in found.remedies[0].text


def test_the_line_that_adds_a_weight_after_the_optimizer_was_made() -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model[0].parameters(), 0.01)
        model.append(nn.Linear(3, 3))
        train(model, 4, optimizer)

    assert line_of(watch(work, max_steps=4), "HD401") == "model.append(nn.Linear(3, 3))"


def test_the_optimizer_that_was_never_given_another_model() -> None:
    def work() -> None:
        encoder = nn.Linear(6, 8)
        optimizer = torch.optim.SGD(encoder.parameters(), 0.01)
        head = nn.Linear(8, 3)  # made later, and added to nothing
        for _ in range(4):
            out = head(torch.relu(encoder(torch.randn(8, 6))))
            F.cross_entropy(out, torch.randint(0, 3, (8,))).backward()
            optimizer.step()
            optimizer.zero_grad()

    named = line_of(watch(work, max_steps=4), "HD401")
    assert named == "optimizer = torch.optim.SGD(encoder.parameters(), 0.01)"


def test_the_line_that_converts_to_half_precision() -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
        model = model.to(torch.bfloat16)
        train(
            model,
            12,
            torch.optim.SGD(model.parameters(), 1e-5),
            x=lambda: torch.randn(16, 6, dtype=torch.bfloat16),
        )

    assert line_of(watch(work, max_steps=12), "HD310") == "model = model.to(torch.bfloat16)"


def test_the_hooks_are_gone_afterwards() -> None:
    from torch.nn.modules import module

    watch(lambda: train(nn.Linear(6, 3), steps=2))
    assert not module._global_module_registration_hooks
    assert not module._global_parameter_registration_hooks
    assert "__setattr__" not in vars(nn.modules.dropout._DropoutNd)
    assert "headway" not in inspect.getsourcefile(nn.Module.train)  # type: ignore[operator]


# Warnings and failures of torch


def test_a_warning_of_torch_names_the_line_of_the_user_once() -> None:
    def work() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            x = torch.randn(16, 8)
            loss = F.mse_loss(model(x), x.sum(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        seen: list[tuple[str, int]] = []
        shown = warnings.showwarning

        def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            if "target size" in str(message):
                seen.append((filename, lineno))

        warnings.showwarning = show
        watch(work)
        assert warnings.showwarning is show
        warnings.showwarning = shown
    source, first = inspect.getsourcelines(work)
    line = first + next(at for at, text in enumerate(source) if "mse_loss" in text)
    assert seen == [(__file__, line)]


def test_sparse_gradients_are_looked_at() -> None:
    def work() -> None:
        torch.manual_seed(0)
        table, head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 2)
        both = [torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())]
        mix = torch.eye(16).to_sparse()
        for _ in range(4):
            words = torch.randint(0, 50, (16,))
            loss = F.cross_entropy(head(torch.sparse.mm(mix, table(words))), words % 2)
            for optimizer in both:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in both:
                optimizer.step()

    checked = watch(work)  # strict: an observer that fails raises
    assert not checked.notes
    assert not [item for item in checked.report.findings if item.severity > Severity.INFO]


def test_a_failing_observer_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "0")

    class Failing(Observer):
        def step_ended(self, *_: Any) -> None:
            torch.eye(2).to_sparse().ne(0)

    def work() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    [note] = watch(work, observers=[Failing]).notes
    assert "Failing: NotImplementedError: Could not run 'aten::ne.Scalar'" in note
    assert "AutogradCPU" not in note
    assert len(note) < 400
