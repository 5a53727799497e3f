"""A case, traced and walked back through, as an investigation would."""

from __future__ import annotations

from explain.origin_set.scenario import Case

from headway.explain.explanation import Origin
from headway.explain.failing_step import FailingStep
from headway.explain.locate import find_origins
from headway.explain.trace import Trace


def traced_origins(case: Case) -> tuple[Origin, ...]:
    """The origins of its bad step."""
    case.model.zero_grad(set_to_none=True)
    names = {id(parameter): name for name, parameter in case.model.named_parameters()}
    scene = FailingStep([case.model], [case.optimizer], [case.bad], names, scaler=case.scaler)
    trace = Trace(scene)
    with trace:
        loss, parts = case.forward(case.bad)
        scaled = case.scaled(loss)
        trace.backward_begins([scaled], parts)
        scaled.backward()
        trace.gradients_ready(list(case.model.parameters()))
    assert not trace.errors, trace.errors
    return find_origins(trace, scene)
