"""Failing steps run once under a trace, for the tests of the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.explain import locate
from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.trace import Trace

Losses = Tensor | Mapping[str, Tensor]


@dataclass(slots=True)
class Traced:
    script: FailingStep
    trace: Trace
    origins: tuple[Origin, ...]

    @property
    def origin(self) -> Origin:
        assert self.origins, "nothing was found"
        return self.origins[0]


def scene_of(model: nn.Module, *batches: Any, **more: Any) -> FailingStep:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return FailingStep([model], [], batches, names, **more)


def traced(
    model: nn.Module, batch: Any, compute: Callable[[nn.Module, Any], Losses], **more: Any
) -> Traced:
    """Run the step once and walk back. `compute` gives the loss, or its parts by name."""
    return traced_over(model, [batch], compute, **more)


def traced_over(
    model: nn.Module,
    batches: Sequence[Any],
    compute: Callable[[nn.Module, Any], Losses],
    **more: Any,
) -> Traced:
    """The same with several batches whose gradients accumulate."""
    scene = replace(scene_of(model, *batches), **more)
    trace = Trace(scene)
    with trace:
        for batch in batches:
            run_backward(trace, compute(model, batch))
        trace.gradients_ready(list(model.parameters()))
    assert trace.errors == []
    return Traced(scene, trace, locate.find_origins(trace, scene))


def run_backward(trace: Trace, losses: Losses) -> None:
    parts = losses if isinstance(losses, Mapping) else {}
    total = torch.stack(list(losses.values())).sum() if isinstance(losses, Mapping) else losses
    trace.backward_begins([total], parts)
    total.backward()


def line_of(origin: Origin) -> str:
    """The text of the line that is blamed."""
    assert origin.place is not None
    return origin.place.source
