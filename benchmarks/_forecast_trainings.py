"""Small trainings for `forecast.py`: one loop that can inject every fault of the settings.

Each runs under a `Guard` that only records. The forecasts read what the guard writes, and two
values that it does not write today: how far the largest attention logit exceeds its row's
mean, and the cosine between a gradient and the update before it.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
from _forecast_tasks import Attention, Batch, Task
from torch import Tensor, nn

from headway import Guard, Policy
from headway.core.records import StepRecord
from headway.engine import Engine
from headway.rundir.run_reader import RunDir

EVALUATE_EVERY = 5
RECORD_ONLY = Policy(hold_spikes=False, back_offs=0, roll_backs=0, halt=False, replay=False)


@dataclass(frozen=True)
class Setting:
    """One training: its task, its optimizer, and the faults that are injected."""

    family: str
    half: str
    expected: str
    """`diverges` or `survives`, written before the first run."""
    task: str
    rate: float
    seed: int = 0
    optimizer: str = "adamw"
    steps: int = 300
    batch: int = 32
    schedule: str = "constant"
    """`constant`, `warm-up` (then a cosine), `ramp` (up to `top` times the rate, from `at` to the
    end), `restarts` (a cosine that begins again every `at` steps), `drop` (to a tenth at `at`)."""
    warm_up: int = 0
    top: float = 1.0
    clip: float = 0.0
    """Largest gradient norm; 0: no clipping."""
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    half_precision: bool = False
    """Weights and moments in bfloat16."""
    form: str = ""
    """A variant of the task's model."""
    changes: tuple[tuple[int, int, str, float], ...] = ()
    """(first step, step after the last, what, value): see `Training.apply`."""
    at: int = 100

    @property
    def cause(self) -> int:
        """The first step at which the fault is visible; a warning before it is a chance hit."""
        begins = [begin for begin, _, _, _ in self.changes]
        return max(begins, default=self.at if self.schedule == "ramp" else 0)

    @property
    def name(self) -> str:
        words = [self.family, self.task, self.form, self.optimizer, f"{self.rate:g}"]
        return f"{' '.join(word for word in words if word)} #{self.seed}"


@dataclass
class Series:
    """What a training recorded; NaN where a value was not measured."""

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    turn: list[float] = field(default_factory=list)
    """Cosine between the gradient and the update before it; above 0: the step went too far."""
    attention: list[float] = field(default_factory=list)
    update_ratios: dict[int, list[float]] = field(default_factory=dict)
    """By step: the update of each weight matrix relative to the matrix."""
    weight_norms: dict[int, list[float]] = field(default_factory=dict)
    layer_norms: dict[int, list[float]] = field(default_factory=dict)
    """By step: the gradient norm of each weight matrix."""
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """The loss on fixed data that no detector sees: it decides whether the run diverged."""
    findings: list[tuple[int, str]] = field(default_factory=list)
    """What headway's checks reported, at the step where they did."""


class Training:
    """One training, its data and its faults."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.task = Task(setting.task, setting.form, setting.seed)
        torch.manual_seed(setting.seed)
        self.model = self.task.model()
        if setting.half_precision:
            self.model.to(torch.bfloat16)
        self.optimizer = self.make_optimizer()
        self.batch_size, self.clip = setting.batch, setting.clip
        self.scales = {"inputs": 1.0, "targets": 1.0, "loss": 1.0, "rate": 1.0}
        self.hard = self.heavy = 0.0
        self.fixed: Batch | None = None
        if setting.task == "linear":  # the whole data at each step
            self.fixed = self.task.batch(64)
        # Judged on the data that the run ends with: a curriculum is no divergence.
        random = torch.Generator().manual_seed(9)
        hard = any(
            what == "hard" and until >= setting.steps for _, until, what, _ in setting.changes
        )
        self.evaluation = self.task.batch(128, hard=hard, random=random)

    def make_optimizer(self) -> torch.optim.Optimizer:
        s, parameters = self.setting, self.model.parameters()
        if s.optimizer == "sgd":
            return torch.optim.SGD(parameters, s.rate, momentum=s.momentum, weight_decay=s.decay)
        if s.optimizer == "rmsprop":
            return torch.optim.RMSprop(
                parameters, s.rate, alpha=s.betas[1], eps=s.eps, momentum=s.momentum
            )
        kind = torch.optim.Adam if s.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, s.rate, betas=s.betas, eps=s.eps, weight_decay=s.decay)

    def apply(self, step: int) -> None:
        """Start and end the changes that the setting lists for this step."""
        for begin, end, what, value in self.setting.changes:
            if step not in (begin, end):
                continue
            on, group = step == begin, self.optimizer.param_groups[0]
            if what in self.scales:
                self.scales[what] = value if on else 1.0
            elif what in ("hard", "heavy"):
                setattr(self, what, value if on else 0.0)
            elif what == "batch":
                self.batch_size = int(value) if on else self.setting.batch
            elif what == "clip":
                self.clip = value if on else self.setting.clip
            elif what == "reset" and on:
                self.optimizer.state.clear()
            elif what == "beta2" and on:
                group["betas"] = (group["betas"][0], value)
            elif what in ("momentum", "weight_decay", "eps") and on:
                group[what] = value
            elif what == "noise" and on:
                for parameter in self.model.parameters():
                    parameter.data += value * parameter.std() * torch.randn_like(parameter)

    def rate(self, step: int) -> float:
        s = self.setting
        share = 1.0
        if s.schedule == "ramp":
            share = s.top ** (max(step - s.at, 0) / (s.steps - s.at))
        elif s.schedule == "restarts":
            share = 0.02 + 0.49 * (1 + math.cos(math.pi * (step % s.at) / s.at))
        elif s.schedule == "drop":
            share = 0.1 if step >= s.at else 1.0
        elif s.schedule == "warm-up" and step >= s.warm_up:
            share = 0.55 + 0.45 * math.cos(math.pi * (step - s.warm_up) / (s.steps - s.warm_up))
        if step < s.warm_up:
            share = (step + 1) / s.warm_up
        return s.rate * share * self.scales["rate"]

    def batch(self) -> Batch:
        x, y = self.fixed or self.task.batch(self.batch_size, hard=bool(self.hard))
        if self.scales["inputs"] != 1 and x.is_floating_point():
            x = x * self.scales["inputs"]
        if y.is_floating_point():
            y = y * self.scales["targets"]
            if self.heavy:  # a few samples of a heavy-tailed distribution
                y = y + self.heavy * torch.randn_like(y) / torch.randn_like(y).abs().clamp(0.02)
        return x.to(
            torch.bfloat16
        ) if self.setting.half_precision and x.is_floating_point() else x, y

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        x, y = self.evaluation
        if self.setting.half_precision and x.is_floating_point():
            x = x.to(torch.bfloat16)
        loss = float(self.task.loss(self.model(x), y))
        self.model.train()
        return loss

    def run(self) -> Series:
        series = Series()
        with tempfile.TemporaryDirectory() as folder:
            with Guard(self.model, self.optimizer, run_dir=folder, policy=RECORD_ONLY):
                for step in range(self.setting.steps):
                    if step % EVALUATE_EVERY == 0:
                        series.evaluations.append((step, self.evaluate()))
                    if not self.step(step, series):
                        break
            add_recorded(series, RunDir(folder))
        return series

    def step(self, step: int, series: Series) -> bool:
        """One step; False: the loss is not finite, and the run ends."""
        self.apply(step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        x, y = self.batch()
        loss = self.task.loss(self.model(x), y) * self.scales["loss"]
        if not math.isfinite(loss.item()):
            return False
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.model.parameters())
        gradient = flat([p.grad for p in parameters])
        update = getattr(self, "update", None)
        series.turn.append(cosine(gradient, update) if update is not None else math.nan)
        attentions = [m.excess for m in self.model.modules() if isinstance(m, Attention)]
        series.attention.append(max(attentions, default=math.nan))
        if self.clip:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        before = flat(parameters)
        self.optimizer.step()
        self.update = flat(parameters) - before
        return True


def flat(tensors: list[Any]) -> Tensor:
    return torch.cat([t.detach().float().reshape(-1) for t in tensors if t is not None])


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm() + 1e-30))


def add_recorded(series: Series, run: RunDir) -> None:
    """Read the guard's record, and run headway's checks over it step by step."""
    engine = Engine()
    for record in run.records():
        engine.feed(record)
        series.findings += [(len(series.loss), finding.code) for finding in engine.opened]
        if not isinstance(record, StepRecord) or "loss" not in record.values:
            continue
        values, step = record.values, len(series.loss)
        series.loss.append(values["loss"])
        series.grad_norm.append(values.get("grad_norm", math.nan))
        series.rate.append(values.get("lr", math.nan))
        for name, kept in (
            ("param/update_ratio", series.update_ratios),
            ("param/weight_norm", series.weight_norms),
            ("param/grad_norm", series.layer_norms),
        ):
            if name in record.columns:
                kept[step] = [float(value) for _, value in record.columns[name].items()]
