"""How well the births of the set are told: line, op, module, kind, rows, and no mask blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from explain.origin_set.lines import deliberate_lines
from explain.origin_set.scenario import Case, Scenario

from headway.explain.explanation import Explanation, Origin
from headway.torch_adapters.source import SourceLine

Explainer = Callable[[Case], Explanation | Sequence[Origin]]

ASPECTS = ("line", "op", "module", "kind", "phase", "rows", "component")


@dataclass(frozen=True)
class Marks:
    """What was right about one scenario; None where there was nothing to be right about."""

    scenario: Scenario
    birth: Origin | None
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
    births = tuple(told.births if isinstance(told, Explanation) else told)
    blamed = tuple(
        str(place)
        for birth in births
        for place in _places(birth)
        if (place.file, place.line) in masks
    )
    first = births[0] if births else None
    return Marks(scenario, first, _right(scenario, first), blamed)


def _right(scenario: Scenario, birth: Origin | None) -> dict[str, bool | None]:
    if birth is None:
        return dict.fromkeys(ASPECTS, False)
    file, number = scenario.line()
    return {
        "line": any((place.file, place.line) == (file, number) for place in _places(birth)),
        "op": birth.op in scenario.ops,
        "module": birth.module in scenario.modules,
        "kind": birth.kind == scenario.kind,
        "phase": birth.phase == scenario.phase,
        "rows": None if scenario.rows is None else tuple(birth.rows) == scenario.rows,
        "component": None if scenario.component is None else birth.component == scenario.component,
    }


def _places(birth: Origin) -> list[SourceLine]:
    return [place for place in (birth.place, birth.called_from) if place is not None]


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
    if mark.birth is None:
        return "   nothing found"
    birth, scenario = mark.birth, mark.scenario
    said = {
        "line": f"{birth.place and Path(birth.place.file).name}:{birth.place and birth.place.line}"
        f" for {scenario.line()[1]}",
        "op": f"{birth.op} for {'/'.join(scenario.ops)}",
        "module": f"{birth.module!r} for {scenario.modules[0]!r}",
        "kind": f"{birth.kind} for {scenario.kind}",
        "phase": f"{birth.phase} for {scenario.phase}",
        "rows": f"{birth.rows} for {scenario.rows}",
        "component": f"{birth.component} for {scenario.component}",
    }
    wrong = [text for aspect, text in said.items() if mark.right[aspect] is False]
    wrong += [f"blames {place}" for place in mark.blamed]
    return "   " + "; ".join(wrong) if wrong else ""
