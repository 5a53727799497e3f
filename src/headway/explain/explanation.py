"""What an investigation found, as plain data: written to disk, rendered, compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from headway.torch_adapters.source import SourceLine

Phase = Literal["forward", "backward"]
Tried = Literal["cured", "not cured", "not tried"]
Nature = Literal["deterministic", "transient", "compiler", "unknown"]
Guilt = Literal["batch", "weights", "together", "unknown"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that went into an op, or came out of it."""

    name: str
    """Its argument (`self`, `weight`), or a parameter's or buffer's path in the model."""
    role: str
    """`weight`, `buffer`, `batch`, `computed`, `constant`, `carried` (made before this step), or
    `uninitialised`."""
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    """The range of its finite elements; None where there are none."""
    nan: int = 0
    inf: int = 0
    zero: int = 0
    """How many elements are NaN, infinite, exactly 0."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where finite numbers became a non-finite one that reached the loss or a gradient."""

    kind: str
    """Which of the kinds in `births.py`."""
    cause: str
    """The same in plain words, with the numbers of this case."""
    phase: Phase
    op: str
    """The user's op: `log`, `div`, `linear`; for a backward birth, the forward op it belongs to."""
    node: str | None = None
    """Autograd's name of the backward, such as `SqrtBackward0`."""
    module: str = ""
    """Path of the innermost module that ran; empty outside of the model."""
    place: SourceLine | None = None
    """The innermost line that is not torch's: the user's, or that of a library."""
    called_from: SourceLine | None = None
    """The user's own line, where `place` is a library's; also where the function that `place` is in
    was called from more lines than one."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()
    """Samples of the batch it happened in; empty where they cannot be told apart."""
    batch: int = 0
    """Which of the step's batches that is, under accumulation."""
    reached: tuple[str, ...] = ()
    """Parameters whose gradients are bad because of it."""
    component: str | None = None
    """The named part of the loss it came through."""
    order: int = 0
    """Position among the ops of the step."""
    autocast: str | None = None
    """The dtype autocast was casting to, where it was on."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One remedy, and what came of it on the failing step."""

    key: str
    text: str
    """What the user would do, as a sentence."""
    tried: Tried = "not tried"
    why: str = ""
    """The reason it was not tried, or what was still wrong."""


@dataclass(frozen=True, slots=True)
class Spike:
    """What carries a jump that is finite but huge."""

    component: str | None = None
    rows: tuple[int, ...] = ()
    batch: int = 0
    """Which of the step's batches the rows are of, under accumulation."""
    layers: tuple[str, ...] = ()
    """Parameters whose gradients grew most, and by how much (`growth`)."""
    growth: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to: why did this step go bad, and what helps?"""

    step: int
    symptom: Literal["nonfinite", "spike"]
    nature: Nature
    headline: str = ""
    """What happened and where, in a sentence."""
    summary: str = ""
    """The same, and what helped."""
    births: tuple[Origin, ...] = ()
    """The one to mend first stands first."""
    spike: Spike | None = None
    trials: tuple[Trial, ...] = ()
    """The best that was tried stands first."""
    guilt: Guilt = "unknown"
    """Which of the two was needed for it: this batch, these weights, or only the two together."""
    samples: tuple[Any, ...] = ()
    """The guilty samples as the data set calls them, where that is known."""
    rank: int | None = None
    """Where it was born, with several ranks."""
    passes: int = 0
    seconds: float = 0.0
    loss: float | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def birth(self) -> Origin | None:
        return self.births[0] if self.births else None

    @property
    def guilty_rows(self) -> tuple[int, ...]:
        """The rows of a batch it came from; empty where they cannot be told."""
        culprit = self.birth or self.spike
        return () if culprit is None else culprit.rows

    @property
    def cure(self) -> Trial | None:
        """The best remedy that worked."""
        return next((trial for trial in self.trials if trial.tried == "cured"), None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """The explanation behind `to_dict`, whether or not it went through JSON meanwhile.

        Raises TypeError or ValueError if there is none.
        """
        births = tuple(_read_origin(item) for item in data.get("births", ()))
        spike = data.get("spike")
        known = {
            **data,
            "births": births,
            "spike": None if spike is None else Spike(**_tuples(spike)),
            "trials": tuple(Trial(**item) for item in data.get("trials", ())),
            "samples": tuple(data.get("samples", ())),
            "notes": tuple(data.get("notes", ())),
        }
        told = cls(**known)
        for said, allowed in (
            (told.nature, Nature),
            (told.guilt, Guilt),
            *((trial.tried, Tried) for trial in told.trials),
            *((birth.phase, Phase) for birth in births),
        ):
            if said not in get_args(allowed):
                raise ValueError(f"{said!r:.40} is none of {', '.join(get_args(allowed))}")
        if not all(isinstance(text, str) for text in _texts(told)):
            raise TypeError("a text is none")
        return told


def _read_origin(data: Mapping[str, Any]) -> Origin:
    read = _tuples(data)
    for name in ("place", "called_from"):
        if read.get(name) is not None:
            read[name] = SourceLine(**read[name])
    read["inputs"] = tuple(_read_operand(item) for item in read.get("inputs", ()))
    if read.get("output") is not None:
        read["output"] = _read_operand(read["output"])
    return Origin(**read)


def _texts(told: Explanation) -> list[Any]:
    """What is shown as it is."""
    of_births = [text for birth in told.births for text in (birth.kind, birth.cause, birth.op)]
    of_trials = [text for trial in told.trials for text in (trial.key, trial.text, trial.why)]
    return [told.headline, told.summary, *of_births, *of_trials, *told.notes]


def _read_operand(data: Mapping[str, Any]) -> Operand:
    return Operand(**_tuples(data))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
