"""A failing step, run again under a remedy, the way whoever owns the training would run it."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.overrides import _get_current_function_mode_stack

from headway.explain.counterfactual import judge_trial
from headway.explain.explanation import Operand, Trial
from headway.explain.failing_step import FailingStep, Outcome
from headway.explain.remedies.base import StepRemedy
from headway.torch_adapters import rng
from headway.torch_adapters.frames import Location

Step = Callable[[Any], Tensor]


def scene_of(model: nn.Module, *batches: Any, **facts: Any) -> FailingStep:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return FailingStep([model], [], list(batches), names, **facts)


def run(scene: FailingStep, step: Step, remedy: StepRemedy | None = None) -> Outcome:
    """One pass: forward and backward over every batch, gradients measured, state put back."""
    outcome = Outcome()
    before = rng.capture()
    buffers = [b for model in scene.models for b in model.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    batches = scene.batches if remedy is None else remedy.batches(scene)
    for model in scene.models:
        model.zero_grad(set_to_none=True)
    try:
        with nullcontext() if remedy is None else remedy.applied(scene):
            for batch in batches:
                loss = step(batch)
                loss.backward()
                outcome.losses.append(float(loss.detach()))
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"
    for model in scene.models:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                outcome.norms[name] = float(parameter.grad.double().norm())
    rng.restore(before)
    for buffer, value in zip(buffers, kept, strict=True):
        buffer.copy_(value)
    return outcome


def attempt(scene: FailingStep, step: Step, remedy: StepRemedy) -> Trial:
    return judge_trial(remedy, run(scene, step, remedy), scene.limit)


def switches(scene: FailingStep) -> tuple[Any, ...]:
    """Everything a remedy could have left switched on."""
    modules = [module for model in scene.models for module in model.modules()]
    return (
        autocast.__enter__,
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        tuple(_get_current_function_mode_stack()),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        tuple(sorted((id(m), *map(str, m.__dict__)) for m in modules)),
        tuple((id(m), m.__dict__.get("forward")) for m in modules),
        torch.get_rng_state().sum().item(),
        random.getstate(),
        np.random.get_state()[1].sum(),
    )


def bits(outcome: Outcome) -> tuple[Any, ...]:
    return tuple(outcome.losses), tuple(outcome.norms.items())


def leaves_nothing(
    scene: FailingStep, step: Step, remedy: StepRemedy, healthy: FailingStep
) -> None:
    """In force and gone again, also after an exception: a healthy step is the same to the bit."""
    state, before = switches(scene), bits(run(healthy, step))
    run(scene, step, remedy)
    assert switches(scene) == state
    assert bits(run(healthy, step)) == before

    class Oops(Exception):
        pass

    def broken(batch: Any) -> Tensor:
        step(batch)
        raise Oops

    drawn = rng.capture()
    with pytest.raises(Oops), remedy.applied(scene):
        broken(scene.batches[0])
    rng.restore(drawn)
    assert switches(scene) == state
    assert bits(run(healthy, step)) == before


class Script:
    """User's code in a file of its own, so that its lines have numbers and can be edited."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        path.write_text(text)
        linecache.checkcache(str(path))

    def line(self, marked: str = "# here") -> Location:
        lines = self.text.splitlines()
        at = next(at for at, line in enumerate(lines) if marked in line)
        return Location(str(self.path), at + 1, "step", lines[at].split("#")[0].strip())

    def load(self, **names: Any) -> dict[str, Any]:
        import torch.nn.functional as F

        scope: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, **names}
        exec(compile(self.text, str(self.path), "exec"), scope)
        return scope

    def edited(self, line: Location, written: str) -> Script:
        """The user did what the remedy's text says."""
        lines = self.text.splitlines()
        theirs = lines[line.line - 1]
        lines[line.line - 1] = theirs[: len(theirs) - len(theirs.lstrip())] + written
        path = self.path.with_name(f"{self.path.stem}_edited.py")
        return Script(path, "\n".join(lines))


def operand(tensor: Tensor, name: str = "self", role: str = "computed") -> Operand:
    """As the tracer describes tensors."""
    values = tensor.detach().double()
    finite = values[torch.isfinite(values)]
    return Operand(
        name,
        role,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        float(finite.min()) if finite.numel() else None,
        float(finite.max()) if finite.numel() else None,
        int(values.isnan().sum()),
        int(values.isinf().sum()),
        int((values == 0).sum()),
    )


def operands(*tensors: Tensor) -> Sequence[Operand]:
    return tuple(operand(t, name) for t, name in zip(tensors, ("self", "other"), strict=False))
