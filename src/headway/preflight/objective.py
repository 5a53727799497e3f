"""What a loss is made of: the weight of each mean on the way to it.

Each one is changed a little while the tape is played; what becomes of the total tells its weight,
whether it was divided, negated or scheduled in Python or by a framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.preflight.playing import Player
from headway.preflight.tape import Tape
from headway.preflight.taped import Op, Root, Weight

MOST = 6
"""Means that are looked at, the last ones of a loss first."""


@dataclass(slots=True)
class LossCall:
    """A loss function of torch's that was called."""

    name: str
    number: int
    value: float
    mean: bool
    place: dict[str, Any] | None


def facts_of_objective(
    tape: Tape, backwards: Sequence[Sequence[Root]], calls: Sequence[LossCall], scale: float
) -> dict[str, Any]:
    """Facts about the backward passes of a step. Raises CannotPlay where there are none."""
    players = [Player(tape, roots) for roots in backwards if roots]
    shapes = {_shape(player) for player in players}
    weights = {frozenset(_weights(player)) for player in players}
    first = players[0]
    return {
        "backwards": len(backwards),
        "same_ops": len(shapes) == 1,
        "same_weights": len(weights) == 1,
        "same_data": len({_data(player) for player in players}) < len(players),
        "root": sum(root.value for root in first.roots) / scale,
        "parts": _parts(first, calls, scale),
    }


def _parts(player: Player, calls: Sequence[LossCall], scale: float) -> list[dict[str, Any]]:
    start = sum(player.play())
    made = {
        number
        for _, entry in player.program
        if isinstance(entry, Op)
        for _, number, _ in entry.makes
    }
    named = {call.number: call for call in calls if call.number in made}
    found = []
    for number in list(named)[-MOST:]:
        call = named[number]
        weight = _weight(player, number, call.value, start) / scale
        found.append(
            {
                "name": call.name,
                "value": call.value,
                "weight": weight,
                "mean": call.mean,
                "known": True,
                "place": call.place,
            }
        )
    if found:
        return found
    means = [
        (entry.makes[0][1], str(entry.func))
        for _, entry in player.program
        if isinstance(entry, Op) and entry.mean and entry.size == 1 and entry.makes
    ]
    for number, name in means[-MOST:]:
        value = _value(player, number)
        weight = _weight(player, number, value, start) / scale
        part = {"name": name, "value": value, "weight": weight, "mean": True, "known": False}
        found.append(part)
    return found


def _weight(player: Player, number: int, value: float, start: float) -> float:
    step = 0.01 * max(abs(value), 1e-3)
    return (sum(player.play({number: lambda tensor: tensor + step})) - start) / step


def _value(player: Player, number: int) -> float:
    seen: list[float] = []

    def look(tensor: Tensor) -> Tensor:
        seen.append(float(tensor))
        return tensor

    player.play({number: look})
    return seen[-1] if seen else 0.0


def _shape(player: Player) -> tuple[str, ...]:
    return tuple(str(entry.func) for _, entry in player.program if isinstance(entry, Op))


def _weights(player: Player) -> set[int]:
    found: set[int] = set()
    for _, entry in player.program:
        if isinstance(entry, Op):
            _collect((entry.args, entry.kwargs), found)
    return found


def _collect(value: Any, found: set[int]) -> None:
    if isinstance(value, Weight):
        found.add(value.tensor.untyped_storage()._cdata)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        _collect(list(value.values()), found)


def _data(player: Player) -> tuple[float, ...]:
    """The losses themselves: two passes over the same batch have the same."""
    return tuple(root.value for root in player.roots)
