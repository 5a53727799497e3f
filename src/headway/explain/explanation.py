"""What an explanation of a bad step says, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from headway.torch_adapters.source import SourceLine

# What an investigation found, as plain data: written to disk, rendered, compared.

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
    """One of `origin.KINDS`."""
    cause: str
    """The same in plain words, with the numbers of this case."""
    phase: Phase
    op: str
    """The user's op: `log`, `div`, `linear`; for an origin in backward, its forward op."""
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
    origins: tuple[Origin, ...] = ()
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
    def origin(self) -> Origin | None:
        return self.origins[0] if self.origins else None

    @property
    def guilty_rows(self) -> tuple[int, ...]:
        """The rows of a batch it came from; empty where they cannot be told."""
        culprit = self.origin or self.spike
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
        origins = tuple(_read_origin(item) for item in data.get("origins", ()))
        spike = data.get("spike")
        known = {
            **data,
            "origins": origins,
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
            *((origin.phase, Phase) for origin in origins),
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
    of_origins = [
        text for origin in told.origins for text in (origin.kind, origin.cause, origin.op)
    ]
    of_trials = [text for trial in told.trials for text in (trial.key, trial.text, trial.why)]
    return [told.headline, told.summary, *of_origins, *of_trials, *told.notes]


def _read_operand(data: Mapping[str, Any]) -> Operand:
    return Operand(**_tuples(data))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}


# Writes the sentences of an explanation.

_PLAIN_GUILT: dict[str, Guilt] = {
    "poisoned-batch": "batch",
    "poisoned-weight": "weights",
    "poisoned-buffer": "weights",
}
GUILT_SENTENCES = {
    "batch": "The batch alone is guilty: it fails with older weights, too.",
    "weights": "The weights are guilty: another batch fails with them, too.",
    "together": "Only this batch with these weights fails: each is fine with another.",
}


def guilt_by_kind(origin: Origin | None) -> Guilt | None:
    """Whose guilt it is, where that needs no experiment."""
    return None if origin is None else _PLAIN_GUILT.get(origin.kind)


def add_sentences(explanation: Explanation) -> Explanation:
    """The explanation with its sentences."""
    said = _write_headline(explanation)
    spoken = replace(explanation, headline=said[:1].upper() + said[1:])
    return replace(spoken, summary=_summary(spoken))


def _summary(explanation: Explanation) -> str:
    parts = [explanation.headline]
    cure = explanation.cure
    if cure is not None:
        parts.append(f"Tried and cured: {cure.text}")
    elif explanation.trials and any(trial.tried == "not cured" for trial in explanation.trials):
        parts.append("No remedy that was tried cured it.")
    return " ".join(parts)


def format_line(line: SourceLine | None) -> str:
    """`train.py:31`; empty where it is not known."""
    return "" if line is None else str(line)


def format_samples(explanation: Explanation) -> str:
    """`sample 5 (data set: 1871)`; empty where none can be named."""
    origin, spike = explanation.origin, explanation.spike
    rows = origin.rows if origin else spike.rows if spike else ()
    if not rows:
        return ""
    known = f" (data set: {_list_some(explanation.samples)})" if explanation.samples else ""
    return f"sample{'s' if len(rows) > 1 else ''} {_list_some(rows)}{known}"


def _write_headline(explanation: Explanation) -> str:
    origin = explanation.origin
    if explanation.nature == "transient":
        return (
            "The same step, run again unchanged, went well: the fault was transient. Suspect the "
            "hardware, a race, or something outside of this step's state."
        )
    if explanation.nature == "compiler":
        return (
            "Run op by op the step goes well; compiled, it fails again: suspect the compiler's "
            "code, not yours."
        )
    if origin is not None:
        return _describe_origin(origin, explanation)
    if explanation.spike is not None:
        return _describe_spike(explanation)
    if explanation.notes:
        return f"Not explained: {explanation.notes[0]}."
    return "The step fails again, but the op that began it was not seen."


def _describe_origin(origin: Origin, explanation: Explanation) -> str:
    where = f"at {format_line(origin.place)}" if origin.place else f"in {origin.op}"
    module = f" in {origin.module}" if origin.module else ""
    backward = " (in backward)" if origin.phase == "backward" else ""
    who = format_samples(explanation)
    rank = f" on rank {explanation.rank}" if explanation.rank is not None else ""
    return (
        f"{origin.cause.rstrip('.')}, {where}{module}{backward}{rank}"
        + (f", {who}" if who else "")
        + "."
    )


def _describe_spike(explanation: Explanation) -> str:
    spike = explanation.spike
    assert spike is not None
    parts = []
    if spike.component:
        parts.append(f"component {spike.component}")
    if who := format_samples(explanation):
        parts.append(who)
    if spike.layers:
        grown = f"{spike.growth[0]:.3g} times its usual" if spike.growth else "the largest"
        parts.append(f"layer {spike.layers[0]}, {grown} gradient")
    if explanation.rank is not None:
        parts.insert(0, f"rank {explanation.rank}")
    return f"The jump is carried by {', '.join(parts)}." if parts else "The jump is everywhere."


def _list_some(items: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(str(item) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
