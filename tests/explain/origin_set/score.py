"""How well the origins of the set are told: line, op, module, kind, rows, and no mask blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from explain.origin_set.lines import deliberate_lines
from explain.origin_set.scenario import Case, Scenario

from headway.explain.explanation import Explanation, Origin
from headway.torch_adapters.frames import Location

Explainer = Callable[[Case], Explanation | Sequence[Origin]]

ASPECTS = ("line", "op", "module", "kind", "phase", "rows", "component")


@dataclass(frozen=True)
class Marks:
    """What was right about one scenario; None where there was nothing to be right about."""

    scenario: Scenario
    origin: Origin | None
    right: dict[str, bool | None]
    blamed: tuple[str, ...] = ()
    """Lines with a -inf that was meant."""
    error: str = ""


def score(
    explain: Explainer,
    scenarios: Iterable[Scenario],
    device: str = "cpu",
    autocast: torch.dtype | None = None,
) -> list[Marks]:
    """Every scenario that holds under this precision."""
    name = str(autocast).removeprefix("torch.")
    return [
        _marks(scenario, explain, device, autocast)
        for scenario in scenarios
        if name not in scenario.excluded
    ]


def _marks(
    scenario: Scenario, explain: Explainer, device: str, autocast: torch.dtype | None
) -> Marks:
    masks = deliberate_lines(scenario, scenario.case(device, autocast)) if scenario.decoy else set()
    try:
        told = explain(scenario.case(device, autocast))
    except Exception as problem:
        nothing: dict[str, bool | None] = dict.fromkeys(ASPECTS, False)
        return Marks(scenario, None, nothing, error=f"{type(problem).__name__}: {problem}")
    origins = tuple(told.origins if isinstance(told, Explanation) else told)
    blamed = tuple(
        str(place)
        for origin in origins
        for place in _places(origin)
        if (place.file, place.line) in masks
    )
    first = origins[0] if origins else None
    return Marks(scenario, first, _right(scenario, first), blamed)


def _right(scenario: Scenario, origin: Origin | None) -> dict[str, bool | None]:
    if origin is None:
        return dict.fromkeys(ASPECTS, False)
    file, number = scenario.line()
    return {
        "line": any((place.file, place.line) == (file, number) for place in _places(origin)),
        "op": origin.op in scenario.ops,
        "module": origin.module in scenario.modules,
        "kind": origin.kind == scenario.kind,
        "phase": origin.phase == scenario.phase,
        "rows": None if scenario.rows is None else tuple(origin.rows) == scenario.rows,
        "component": None if scenario.component is None else origin.component == scenario.component,
    }


def _places(origin: Origin) -> list[Location]:
    return [place for place in (origin.place, origin.called_from) if place is not None]


def totals(marks: Sequence[Marks]) -> dict[str, tuple[int, int]]:
    """Right, and of how many; and the masks that were blamed."""
    counted = {}
    for aspect in ASPECTS:
        given = [mark.right[aspect] for mark in marks if mark.right[aspect] is not None]
        counted[aspect] = (sum(bool(each) for each in given), len(given))
    decoys = [mark for mark in marks if mark.scenario.decoy]
    counted["masks blamed"] = (sum(bool(mark.blamed) for mark in decoys), len(decoys))
    return counted


def table(marks: Sequence[Marks]) -> str:
    """One line for every scenario that is not all right, and the totals."""
    lines = [f"{'scenario':26}" + "".join(f"{aspect:>10}" for aspect in ASPECTS)]
    signs = {True: "ok", False: "WRONG", None: "-"}
    for mark in marks:
        row = "".join(f"{signs[mark.right[aspect]]:>10}" for aspect in ASPECTS)
        lines.append(f"{mark.scenario.name:26}{row}{_remark(mark)}")
    lines += [f"{what:26}{right:>4} of {of}" for what, (right, of) in totals(marks).items()]
    return "\n".join(lines)


def _remark(mark: Marks) -> str:
    if mark.error:
        return f"   {mark.error}"
    if mark.origin is None:
        return "   nothing found"
    origin, scenario = mark.origin, mark.scenario
    place = origin.place
    said = {
        "line": f"{place and Path(place.file).name}:{place and place.line}"
        f" for {scenario.line()[1]}",
        "op": f"{origin.op} for {'/'.join(scenario.ops)}",
        "module": f"{origin.module!r} for {scenario.modules[0]!r}",
        "kind": f"{origin.kind} for {scenario.kind}",
        "phase": f"{origin.phase} for {scenario.phase}",
        "rows": f"{origin.rows} for {scenario.rows}",
        "component": f"{origin.component} for {scenario.component}",
    }
    wrong = [text for aspect, text in said.items() if mark.right[aspect] is False]
    wrong += [f"blames {place}" for place in mark.blamed]
    return "   " + "; ".join(wrong) if wrong else ""
