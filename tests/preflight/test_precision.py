"""HD309, HD310, HD314, HD315, HD807: dtypes, lost updates, scaled clipping, idle autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.observer_trainings import batch, checked, codes, first_cause, fit, net
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_


def test_half_weights():
    def work():
        model = net().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            x, y = batch()
            loss = F.cross_entropy(model(x.half()).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert first_cause(work, 3) == "HD309"


def train_bf16(lr: float, steps: int = 8, **more) -> None:
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **more)
    for _ in range(steps):
        x, y = batch()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_updates_below_the_resolution():
    assert first_cause(lambda: train_bf16(1e-5), 4) == "HD310"
    assert first_cause(lambda: train_bf16(1e-5), 3) == "HD310"


def test_bf16_at_a_rate_that_is_seen():
    assert codes(lambda: train_bf16(1e-2), 8) == []


def test_fp32_weights_under_autocast_lose_nothing():
    def work():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(6):
            x, y = batch()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert codes(work) == []


def scaled(between, *, enabled: bool = True, scale: float = 2.0**12, steps: int = 4) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    for _ in range(steps):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        between(model, optimizer, scaler)
        scaler.step(optimizer)
        scaler.update()


def test_clipping_sees_the_scale():
    def norms(model, optimizer, scaler):
        clip_grad_norm_(model.parameters(), 1.0)

    def values(model, optimizer, scaler):
        clip_grad_value_(model.parameters(), 0.5)

    def after_another_optimizers(model, optimizer, scaler):
        torch.nn.utils.clip_grad_norm_(list(model.parameters())[:2], max_norm=1.0)

    for between in (norms, values, after_another_optimizers):
        done = checked(lambda between=between: scaled(between), 3)
        assert done.report.causes[0].code == "HD314", between.__name__
        assert done.report.causes[0].root.where.file == __file__


def test_clipping_what_was_unscaled():
    def unscaled(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        clip_grad_value_(model.parameters(), 0.5)

    def by_hand(model, optimizer, scaler):
        for parameter in model.parameters():
            parameter.grad.div_(scaler.get_scale())
        clip_grad_norm_(model.parameters(), 1.0)

    def no_clip(model, optimizer, scaler):
        pass

    for between in (unscaled, by_hand, no_clip):
        found = codes(lambda between=between: scaled(between), 4)
        assert "HD314" not in found, between.__name__
    clip = lambda model, optimizer, scaler: clip_grad_norm_(model.parameters(), 1.0)  # noqa: E731
    assert "HD314" not in codes(lambda: scaled(clip, enabled=False), 4)


def under(region, *, forward_outside: bool = False) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        x, y = batch()
        if forward_outside:
            out = model(x)
            with region():
                loss = F.cross_entropy(out, y)
        else:
            with region():
                loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Product(torch.autograd.Function):
    """A product that autocast does not reach, unless its inputs are cast before."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.float().numpy() @ weight.float().numpy().T).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = gradient.to(x.dtype)
        return gradient @ weight, gradient.t() @ x


class CustomLinear(nn.Linear):
    def forward(self, x):
        if self.cast:
            return Product.apply(x.bfloat16(), self.weight.bfloat16()) + self.bias.bfloat16()
        return Product.apply(x, self.weight) + self.bias


class Branch(nn.Module):
    """Adds a product of its own to what it is given."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

        class Scores(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cpu", cast_inputs=dtype)
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return (x @ weight.t()).float()

            @staticmethod
            def backward(ctx, gradient):
                x, weight = (item.float() for item in ctx.saved_tensors)
                return gradient @ weight, gradient.t() @ x

        self.scores = Scores

    def forward(self, x):
        return x + torch.tanh(self.scores.apply(x, self.weight))


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, ["HD315"]), (None, [])])
def test_autocast_above_a_function_that_casts_back(dtype: Any, expected: list[str]) -> None:
    def work():
        torch.manual_seed(0)
        model = nn.Sequential(Branch(dtype), Branch(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(4):
            x = torch.randn(16, 8)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            optimizer.zero_grad()
            F.mse_loss(out.float(), x.flip(1)).backward()
            optimizer.step()

    assert [code for code in codes(work, 4) if code == "HD315"] == expected


@pytest.mark.parametrize(("cast", "expected"), [(False, ["HD315"]), (True, [])])
def test_autocast_above_custom_ops(cast: bool, expected: list[str]) -> None:
    CustomLinear.cast = cast

    def work():
        torch.manual_seed(0)
        model = nn.Sequential(CustomLinear(8, 32), nn.ReLU(), CustomLinear(32, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(4):
            x = torch.randn(16, 8)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert codes(work) == expected


@pytest.mark.filterwarnings("ignore")
def test_autocast_that_does_nothing():
    def outside():
        under(lambda: torch.autocast("cpu", torch.bfloat16), forward_outside=True)

    def wrong_device():
        under(lambda: torch.autocast("cuda", torch.float16))

    def wrong_dtype():
        under(lambda: torch.autocast("cpu", torch.float32))

    class Disabled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        @torch.amp.autocast("cpu", enabled=False)
        def forward(self, x):
            return self.inner(x.float())

    def nested():
        model = Disabled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            x, y = batch()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for work in (outside, wrong_device, wrong_dtype, nested):
        assert first_cause(work, 3) == "HD315", work.__name__
    said = checked(wrong_device, 3).report.findings[0].message
    assert "for cuda, the work is on cpu" in said
    assert "nested" in checked(nested, 3).report.findings[0].message


def test_healthy_autocast():
    class Island(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x):
            h = self.first(x).tanh()
            with torch.autocast("cpu", enabled=False):
                return self.second(h.float())

    def island():
        model = Island()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            x, y = batch()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def switched_off_by_a_flag():
        under(lambda: torch.autocast("cuda", enabled=torch.cuda.is_available()))

    def whole():
        under(lambda: torch.autocast("cpu", torch.bfloat16))

    def validation_only():
        model = net()

        def validate(_):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                model(batch()[0])

        fit(model, torch.optim.SGD(model.parameters(), lr=0.05), 4, each=validate)

    for work in (island, switched_off_by_a_flag, whole, validation_only):
        assert codes(work, 4) == [], work.__name__


@pytest.mark.filterwarnings("ignore:Anomaly")
def test_anomaly_mode():
    def on():
        with torch.autograd.set_detect_anomaly(True):
            model = net()
            fit(model, torch.optim.SGD(model.parameters(), lr=0.05), 5)

    def block():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):
            x, y = batch()
            with torch.autograd.detect_anomaly(check_nan=False):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def one_step():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(4):
            x, y = batch()
            with torch.autograd.set_detect_anomaly(step == 1):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert first_cause(on, 3) == "HD807"
    assert first_cause(block, 3) == "HD807"
    assert codes(one_step, 4) == []


def with_masters(scale: float, weight: float) -> None:
    """fp16 copies of fp32 masters; the loss is scaled by hand and weighted by the user."""
    model = net().half()
    copies = list(model.parameters())
    masters = [p.detach().float() for p in copies]
    optimizer = torch.optim.Adam(masters, lr=3e-3)
    for _ in range(8):
        x, y = batch()
        loss = weight * F.cross_entropy(model(x.half()).float(), y)
        model.zero_grad()
        (loss * scale).backward()
        for master, copy in zip(masters, copies, strict=True):
            master.grad = copy.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for master, copy in zip(masters, copies, strict=True):
                copy.copy_(master)


def test_gradients_that_never_reach_the_masters():
    assert first_cause(lambda: with_masters(1.0, 1e-8), 8) == "HD309"


def test_masters_that_get_their_gradients():
    assert codes(lambda: with_masters(1.0, 1.0), 8) == []
    assert codes(lambda: with_masters(2.0**16, 1e-3), 8) == []


class Spread(nn.Module):
    """A standard deviation over time: its slope is infinite where nothing varies."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x).unsqueeze(1).expand(-1, 3, -1)
        return self.head(h.mean(1) + h.var(dim=1).sqrt())


def test_a_scaler_at_its_floor_is_the_cause():
    def work():
        model = Spread()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for _ in range(40):
            x, y = batch()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = checked(work, 40).report
    assert report.causes[0].code == "HD313"
    assert not [item for item in report.findings if item.code == "HD803"]
