"""A case, traced and walked back through, as an investigation would."""

from __future__ import annotations

from replay.birth_set.scenario import Case

from headway.replay.explanation import Birth
from headway.replay.localise import find
from headway.replay.scene import Scene
from headway.replay.trace import Trace


def traced_births(case: Case) -> tuple[Birth, ...]:
    """The births of its bad step."""
    case.model.zero_grad(set_to_none=True)
    names = {id(parameter): name for name, parameter in case.model.named_parameters()}
    scene = Scene([case.model], [case.optimizer], [case.bad], names, scaler=case.scaler)
    trace = Trace(scene)
    with trace:
        loss, parts = case.forward(case.bad)
        scaled = case.scaled(loss)
        trace.backward_begins([scaled], parts)
        scaled.backward()
        trace.gradients_ready(list(case.model.parameters()))
    assert not trace.errors, trace.errors
    return find(trace, scene)
