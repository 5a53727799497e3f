"""Selects the remedies for an origin or a spike, and judges which of them worked."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from headway.explain.explanation import Origin, Spike, Trial, Tried
from headway.explain.failing_step import FailingStep, Outcome
from headway.explain.remedies.base import Advice, StepRemedy
from headway.explain.remedies.drop_samples import DropSamples, batch_size
from headway.explain.remedies.float32 import Fp32, Fp32Island, involves_float16
from headway.explain.remedies.one_line_remedies import (
    Bf16,
    Deterministic,
    Eager,
    GuardInput,
    MathAttention,
)
from headway.torch_adapters.runtime_state import is_compiled

MOST_TRIED = 5
"""Each one costs a pass of the step."""

_TOO_LARGE = ("fp32-island", "bf16", "fp32", "guard-input", "drop-samples", "smaller-rate")
_SINGULAR = ("guard-input", "drop-samples", "fp32-island", "fp32")
_OF_NOTHING = ("guard-input", "drop-samples")

REMEDIES_BY_KIND: dict[str, tuple[str, ...]] = {
    "division-by-zero": _SINGULAR,
    "zero-over-zero": _SINGULAR,
    "log-of-zero": _SINGULAR,
    "log-of-negative": _SINGULAR,
    "sqrt-of-negative": _SINGULAR,
    "sqrt-at-zero": _SINGULAR,
    "pow-singular": _SINGULAR,
    "norm-at-zero": _SINGULAR,
    "std-singular": _SINGULAR,
    "acos-at-one": _SINGULAR,
    "overflow": _TOO_LARGE,
    "exp-overflow": _TOO_LARGE,
    "zero-times-infinity": ("guard-input", "drop-samples", "fp32-island", "bf16", "fp32"),
    "infinity-minus-infinity": ("guard-input", "drop-samples", "fp32-island", "bf16", "fp32"),
    "masked-softmax-row": ("guard-input", "drop-samples", "math-attention"),
    "mean-of-nothing": _OF_NOTHING,
    "masked-target": ("drop-samples", "unmask-target"),
    "masked-nan": ("guard-input", "drop-samples"),
    "poisoned-batch": ("drop-samples",),
    "poisoned-weight": ("roll-back",),
    "poisoned-buffer": ("reset-buffer",),
    "carried-state": ("reset-state",),
    "uninitialised-memory": ("guard-input",),
    "unknown": ("math-attention", "guard-input", "fp32-island", "bf16", "fp32", "drop-samples"),
}
"""Remedies to try for each kind of origin, best first. An eps does not help against a value that is
too large, and a smaller learning rate does not help against a division by zero."""

_BY_SAMPLES = {kind for kind, keys in REMEDIES_BY_KIND.items() if "drop-samples" in keys}


def select_remedies(
    origin: Origin | None, spike: Spike | None, failing_step: FailingStep, nature: str
) -> list[StepRemedy]:
    """The remedies to try, best first."""
    if nature == "transient":
        return [Deterministic("the step does not fail again, so no remedy can be tested on it")]
    found: list[StepRemedy | None] = []
    if nature == "compiler" or (nature == "unknown" and any(map(is_compiled, failing_step.models))):
        found.append(Eager())
    if origin is not None:
        keys = REMEDIES_BY_KIND.get(origin.kind, REMEDIES_BY_KIND["unknown"])
        found += [_MAKE[key](origin, failing_step) for key in keys]
    if spike is not None:
        found += _select_for_spike(spike, failing_step)
    chosen = [remedy for remedy in found if remedy is not None]
    return [_allowed(remedy, failing_step) for remedy in chosen[:MOST_TRIED]]


def worth_bisecting(origin: Origin | None, spike: Spike | None, failing_step: FailingStep) -> bool:
    """Whether unknown samples may be the cause."""
    if sum(batch_size(batch) or 1 for batch in failing_step.batches) < 2:
        return False
    if spike is not None:
        return not spike.rows and not spike.common
    return origin is None or (not origin.rows and origin.kind in _BY_SAMPLES)


def judge_trial(remedy: StepRemedy, outcome: Outcome | None, limit: float | None) -> Trial:
    """The outcome of a remedy; None: the step was not run with it."""
    if remedy.why_not:
        return _trial(remedy, "not tried", remedy.why_not)
    if outcome is None:
        return _trial(remedy, "not tried", "the limit on passes was reached")
    if not outcome.complete:
        why = f"the step could not be run with it: {outcome.error or 'it did not complete'}"
        return _trial(remedy, "not tried", why)
    if not remedy.engaged:
        why = "the step did not reach the code that it changes"
        return _trial(remedy, "not tried", why)
    if outcome.cured(limit):
        return _trial(remedy, "cured")
    return _trial(remedy, "not cured", _still_wrong(outcome, limit))


def _trial(remedy: StepRemedy, tried: Tried, why: str = "") -> Trial:
    return Trial(remedy.key, remedy.text, tried, why, remedy.edits)


def _still_wrong(outcome: Outcome, limit: float | None) -> str:
    bad = [loss for loss in outcome.losses if not math.isfinite(loss)]
    if bad:
        return f"the loss is still {bad[0]}"
    names = [name for name, norm in outcome.norms.items() if not math.isfinite(norm)]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"the gradient of {names[0]}{more} is still not finite"
    return f"the gradient norm is {outcome.norm:.3g}, still above {limit:.3g}"


def _allowed(remedy: StepRemedy, failing_step: FailingStep) -> StepRemedy:
    if failing_step.gentle and not remedy.safe and not remedy.why_not:
        why = "it could raise an error, which would end this training"
        return Advice(remedy.key, remedy.text, why)
    return remedy


def _select_for_spike(spike: Spike, failing_step: FailingStep) -> list[StepRemedy | None]:
    found: list[StepRemedy | None] = [DropSamples.fitting(spike, failing_step)]
    if spike.component is not None:
        found.append(
            Advice(
                "component-weight",
                f"Reduce the weight of `{spike.component}` in the loss, or clamp it",
                "a single step cannot show which weight is right",
            )
        )
    found.append(_smaller_rate())
    return found


def _bf16(origin: Origin, failing_step: FailingStep) -> StepRemedy | None:
    if origin.autocast is None or not involves_float16(origin):
        return None
    cuda = any(p.device.type == "cuda" for model in failing_step.models for p in model.parameters())
    return None if cuda and not torch.cuda.is_bf16_supported() else Bf16()


def _smaller_rate() -> StepRemedy:
    return Advice(
        "smaller-rate",
        "Lower the learning rate, warm up longer, or clip gradients",
        "it takes effect over many steps",
    )


def _roll_back(origin: Origin) -> StepRemedy:
    names = ", ".join(operand.name for operand in origin.inputs if operand.role == "weight")
    return Advice(
        "roll-back",
        f"Roll back to weights from before {names or 'they'} became non-finite",
        "the weights are already non-finite before this step",
    )


def _reset_buffer(origin: Origin) -> StepRemedy:
    names = ", ".join(operand.name for operand in origin.inputs if operand.role == "buffer")
    return Advice(
        "reset-buffer",
        f"Reset {names or 'the buffer'}, or roll back to a state from before it became non-finite",
        "the buffer is already non-finite before this step",
    )


def _unmask_target(origin: Origin) -> StepRemedy:
    where = "" if origin.place is None else f" ({origin.place})"
    return Advice(
        "unmask-target",
        f"Do not mask the target class, or ignore such targets{where}",
        "mask or target may be wrong, and the step does not show which",
    )


def _reset_state(origin: Origin) -> StepRemedy:
    where = "" if origin.place is None else f" ({origin.place})"
    return Advice(
        "reset-state",
        f"Reset the state carried between steps{where}, and detach it",
        "it became non-finite in an earlier step",
    )


_MAKE: dict[str, Callable[[Origin, FailingStep], StepRemedy | None]] = {
    "guard-input": lambda origin, failing_step: GuardInput.fitting(origin),
    "drop-samples": DropSamples.fitting,
    "fp32-island": Fp32Island.fitting,
    "bf16": _bf16,
    "fp32": Fp32.fitting,
    "math-attention": lambda origin, failing_step: MathAttention.fitting(origin),
    "smaller-rate": lambda origin, failing_step: _smaller_rate(),
    "roll-back": lambda origin, failing_step: _roll_back(origin),
    "unmask-target": lambda origin, failing_step: _unmask_target(origin),
    "reset-buffer": lambda origin, failing_step: _reset_buffer(origin),
    "reset-state": lambda origin, failing_step: _reset_state(origin),
}
