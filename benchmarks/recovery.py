"""How a training with bad batches ends, with and without protection.

    python benchmarks/recovery.py               # about three minutes on two cores
    python benchmarks/recovery.py --json FILE

A small transformer learns a synthetic language. After the warm-up of every rule, at steps that the
seed determines, some good batches are replaced by

- spikes: single batches with random targets and a loss a thousand times too large;
- poison: single batches that produce NaN, every other one only in the gradient, as the square root
  of an empty sum does, with a finite loss;
- a bad stretch: twenty batches in a row with random targets, of ordinary size;
- bad memory: one weight becomes infinite between two steps;
- all of these.

Model, data and faults are the same for every rule. `loss`: the held-out loss at the end, median
over the seeds whose runs stayed finite. `lost`: how many steps before its end a clean run under the
same rule had that loss. `held`: skipped updates. `dead`: runs whose weights are not finite at the
end. `time`: processor time of a step, relative to a step without a rule; the model is tiny, so
fixed costs are large (`guard_overhead.py` measures a larger one). The published rules are in
`_published.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import _published as published
import torch
import torch.nn.functional as F
from guard_overhead import Transformer
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import headway

SYMBOLS, LENGTH, BATCH = 12, 24, 16
RATE, BETAS = 3e-3, (0.9, 0.95)
LOOK_EVERY = 10
"""Steps between two checks of the weights, and of the held-out loss of a clean run."""


# The language, and what is done to it.


class Batch(NamedTuple):
    tokens: Tensor
    targets: Tensor
    weight: float = 1.0
    """Factor of the loss."""
    empty_root: bool = False
    """Whether the square root of an empty sum is added to the loss: 0, with a gradient of NaN."""
    flips_a_bit: bool = False
    """Whether a weight becomes infinite before this batch, as a bad memory cell causes it."""


class Language:
    """Text in which the last two symbols nearly determine the next one."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        favours = torch.rand(SYMBOLS, SYMBOLS, SYMBOLS, generator=self.random)
        self.next = torch.softmax(12 * favours, dim=-1)

    def batches(self, count: int, size: int) -> list[Batch]:
        text = torch.randint(SYMBOLS, (count * size, LENGTH + 1), generator=self.random)
        for at in range(2, LENGTH + 1):
            chances = self.next[text[:, at - 2], text[:, at - 1]]
            text[:, at] = torch.multinomial(chances, 1, generator=self.random)[:, 0]
        return [Batch(part[:, :-1], part[:, 1:]) for part in text.split(size)]

    def mislabel(self, batch: Batch, weight: float = 1.0) -> Batch:
        targets = torch.randint(SYMBOLS, batch.targets.shape, generator=self.random)
        return Batch(batch.tokens, targets, weight)


@dataclass(frozen=True)
class Scale:
    """Number of steps, and number of faults."""

    steps: int = 300
    first_fault: int = 110
    spikes: int = 8
    poisoned: int = 5
    stretch: int = 20
    layers: int = 1
    width: int = 48


QUICK = Scale(steps=40, first_fault=22, spikes=2, poisoned=2, stretch=3, width=16)


def spoil(scenario: str, language: Language, batches: list[Batch], scale: Scale) -> None:
    """Replace good batches by the faults of a scenario."""
    span = scale.steps - scale.first_fault - 2 * scale.stretch
    drawn = (torch.randperm(span, generator=language.random) + scale.first_fault).tolist()
    if scenario in ("spikes", "all"):
        for at in drawn[: scale.spikes]:
            batches[at] = language.mislabel(batches[at], weight=1000.0)
    if scenario in ("poison", "all"):
        for count, at in enumerate(drawn[scale.spikes : scale.spikes + scale.poisoned]):
            poison = {"empty_root": True} if count % 2 else {"weight": math.nan}
            batches[at] = batches[at]._replace(**poison)
    if scenario in ("bad memory", "all"):
        at = drawn[scale.spikes + scale.poisoned]
        batches[at] = batches[at]._replace(flips_a_bit=True)
    if scenario in ("bad stretch", "all"):
        first = scale.first_fault + span
        for at in range(first, first + scale.stretch):
            batches[at] = language.mislabel(batches[at])


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.tokens)
    loss = F.cross_entropy(logits.transpose(1, 2), batch.targets) * batch.weight
    return loss + (0 * logits).sum().sqrt() if batch.empty_root else loss


# The rules.


@dataclass
class Training:
    """A model, its optimizer, and the code of a rule between backward and step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    before_step: Callable[[Tensor], bool] = lambda loss: True
    """Clip; False: skip the step."""
    feed: Callable[[Iterable[Batch]], Iterable[Batch]] = lambda batches: batches
    held: Callable[[], int] = lambda: 0


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS)


@contextlib.contextmanager
def nothing(model: nn.Module) -> Iterator[Training]:
    yield Training(model, adamw(model))


@contextlib.contextmanager
def clipped(model: nn.Module) -> Iterator[Training]:
    def clip(loss: Tensor) -> bool:
        clip_grad_norm_(model.parameters(), 1.0)
        return True

    yield Training(model, adamw(model), clip)


@contextlib.contextmanager
def by_hand(model: nn.Module, *, by_norm: bool) -> Iterator[Training]:
    """A common pattern: skip a non-finite loss or norm, and clip the rest."""
    held = 0

    def check(loss: Tensor) -> bool:
        nonlocal held
        norm = clip_grad_norm_(model.parameters(), 1.0)
        fine = bool(torch.isfinite(norm if by_norm else loss))
        held += not fine
        return fine

    yield Training(model, adamw(model), check, held=lambda: held)


@contextlib.contextmanager
def by_rule(model: nn.Module, rule: Any) -> Iterator[Training]:
    def clip(loss: Tensor) -> bool:
        rule.clip(model.parameters())
        return True

    yield Training(model, adamw(model), clip)


@contextlib.contextmanager
def six_sigma(model: nn.Module) -> Iterator[Training]:
    """With clipping to 1.0, as OLMo-core's recipes have it."""
    optimizer = published.SkipStepAdamW(model.parameters(), lr=RATE, betas=BETAS)

    def tell(loss: Tensor) -> bool:
        optimizer.saw(loss, clip_grad_norm_(model.parameters(), 1.0))
        return True

    yield Training(model, optimizer, tell, held=lambda: optimizer.skipped)


@contextlib.contextmanager
def guarded(model: nn.Module, **options: Any) -> Iterator[Training]:
    optimizer = adamw(model)
    with headway.Guard(model, optimizer, **options) as guard:
        yield Training(model, optimizer, feed=guard, held=lambda: len(guard.actions))


RULES: dict[str, Callable[[nn.Module], contextlib.AbstractContextManager[Training]]] = {
    "nothing": nothing,
    "clip_grad_norm_ 1.0": clipped,
    "isfinite(loss) + clip": lambda model: by_hand(model, by_norm=False),
    "isfinite(norm) + clip": lambda model: by_hand(model, by_norm=True),
    "ZClip, as published": lambda model: by_rule(model, published.ZClip()),
    "AdaGC, as published": lambda model: by_rule(model, published.AdaGC()),
    "6-sigma skip + clip": six_sigma,
    "headway": guarded,
    "headway, clip 1.0": lambda model: guarded(model, max_norm=1.0),
    "headway, AdaGC": lambda model: guarded(model, max_norm=headway.AdaGC()),
}
SCENARIOS = ("clean", "spikes", "poison", "bad stretch", "bad memory", "all")


# Running and summing up.


@dataclass
class Outcome:
    loss: float
    held: int
    step_ms: float
    halted: bool = False
    curve: list[float] = field(default_factory=list)
    """Held-out losses of a clean run, every `LOOK_EVERY` steps."""

    @property
    def dead(self) -> bool:
        return not math.isfinite(self.loss)


def carry_out(
    rule: str, batches: list[Batch], held_out: Batch, scale: Scale, seed: int, *, curve: bool
) -> Outcome:
    """One training under a rule, optionally with its held-out losses during the run."""
    torch.manual_seed(seed)
    model = Transformer(scale.layers, scale.width, 2, SYMBOLS, LENGTH)
    with torch.no_grad():
        model.tokens.weight.mul_(0.1)
        model.places.weight.mul_(0.1)
    times, losses, halted = [], [], False
    with RULES[rule](model) as training:
        schedule = torch.optim.lr_scheduler.LambdaLR(
            training.optimizer,
            lambda step: (
                min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / scale.steps))
            ),
        )
        try:
            began = time.process_time()
            for number, batch in enumerate(training.feed(batches)):
                if batch.flips_a_bit:
                    model.tokens.weight.data[0, 0] = math.inf
                loss = loss_of(model, batch)
                loss.backward()
                if training.before_step(loss):
                    training.optimizer.step()
                training.optimizer.zero_grad()
                schedule.step()
                times.append(time.process_time() - began)
                if number % LOOK_EVERY == 0:
                    if not torch.isfinite(model.tokens.weight).all():
                        break  # such weights cannot recover
                    if curve:
                        losses.append(held_out_loss(model, held_out))
                began = time.process_time()
        except headway.TrainingHalted:
            halted = True
        held = training.held()
    final = held_out_loss(model, held_out)
    # The faster steps: slow ones are disturbed by other processes.
    step_ms = 1e3 * statistics.quantiles(times, n=5)[0]
    return Outcome(final, held, step_ms, halted, [*losses, final])


def held_out_loss(model: nn.Module, held_out: Batch) -> float:
    with torch.no_grad():
        return loss_of(model, held_out).item()


def steps_lost(loss: float, clean: Outcome, steps: int) -> int:
    """How many steps before its end a clean run was as good as this loss; all of them if never."""
    best = math.inf
    for at, value in enumerate(clean.curve):
        best = min(best, value)
        if best <= loss:
            return steps - min(at * LOOK_EVERY, steps)
    return 0


def measure(seeds: int, scale: Scale) -> dict[str, Any]:
    """Every rule in every scenario: {scenario: {rule: numbers}}."""
    found: dict[str, dict[str, list[Outcome]]] = {}
    for seed in range(seeds):
        for scenario in SCENARIOS:
            language = Language(seed)
            (held_out,) = language.batches(1, 128)
            batches = language.batches(scale.steps, BATCH)
            spoil(scenario, language, batches, scale)
            for rule in RULES:
                clean = scenario == "clean"
                outcome = carry_out(rule, batches, held_out, scale, seed, curve=clean)
                found.setdefault(scenario, {}).setdefault(rule, []).append(outcome)
    return {
        scenario: {
            rule: summary(outcomes, found["clean"][rule], rows["nothing"], scale)
            for rule, outcomes in rows.items()
        }
        for scenario, rows in found.items()
    }


def summary(
    outcomes: list[Outcome], clean: list[Outcome], bare: list[Outcome], scale: Scale
) -> dict[str, Any]:
    losses = [outcome.loss for outcome in outcomes]
    alive = [
        (outcome.loss, of_clean)
        for outcome, of_clean in zip(outcomes, clean, strict=True)
        if not outcome.dead
    ]
    lost = [steps_lost(loss, of_clean, scale.steps) for loss, of_clean in alive]
    return {
        "losses": [loss if math.isfinite(loss) else str(loss) for loss in losses],
        "loss": statistics.median(loss for loss, _ in alive) if alive else None,
        "lost": statistics.median(lost) if lost else None,
        "held": statistics.median(outcome.held for outcome in outcomes),
        "dead": sum(outcome.dead for outcome in outcomes),
        "halted": sum(outcome.halted for outcome in outcomes),
        "time": statistics.median(
            one.step_ms / other.step_ms for one, other in zip(outcomes, bare, strict=True)
        ),
    }


def show(scenario: str, rows: dict[str, Any], seeds: int) -> None:
    print(f"\n{scenario:24}  loss   lost   held   ended         time")
    for rule, row in rows.items():
        loss = "     -" if row["loss"] is None else f"{row['loss']:6.3f}"
        lost = "    -" if row["lost"] is None else f"{row['lost']:5.0f}"
        ended = f"{row['dead']} of {seeds} dead" if row["dead"] else "well"
        ended = f"{row['halted']} halted" if row["halted"] else ended
        print(f"  {rule:21} {loss}  {lost}  {row['held']:5.0f}   {ended:12}  {row['time']:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a run of a few seconds")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    logging.getLogger("headway").setLevel(logging.ERROR)
    scale = QUICK if options.quick else Scale()
    machine = f"CPU, {platform.machine()}"
    print(f"{machine}; torch {torch.__version__}; {scale.steps} steps, {options.seeds} seeds")
    began = time.perf_counter()
    results = measure(options.seeds, scale)
    for scenario, rows in results.items():
        show(scenario, rows, options.seeds)
    print(f"\n{time.perf_counter() - began:.0f} s")
    if options.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "headway": headway.__version__,
            "seeds": options.seeds,
            "scale": asdict(scale),
            "results": results,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
