"""The explanation of a bad step: its data, and the sentences written from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from headway.core.findings import SourceEdit, say_module
from headway.torch_adapters.frames import Location, name_file

# The data: written to disk, rendered and compared.

Phase = Literal["forward", "backward"]
Tried = Literal["cured", "not cured", "not tried"]
Nature = Literal["deterministic", "transient", "compiler", "unknown"]
Guilt = Literal["batch", "weights", "together", "unknown"]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output tensor of an op."""

    name: str
    """Its argument (`self`, `weight`), or a parameter's or buffer's path in the model."""
    role: str
    """`weight`, `buffer`, `batch`, `computed`, `constant`, `carried` (from an earlier step) or
    `uninitialised`."""
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    """The range of its finite elements; None where there are none."""
    nan: int = 0
    inf: int = 0
    zero: int = 0
    """Number of elements that are NaN, infinite, exactly 0."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The op where a non-finite value that reached the loss or a gradient first appears."""

    kind: str
    """One of `origin.KINDS`."""
    cause: str
    """What happened, with the numbers of this case."""
    phase: Phase
    op: str
    """The user's op: `log`, `div`, `linear`; for an origin in backward, its forward op."""
    node: str | None = None
    """Autograd's name of the backward, such as `SqrtBackward0`."""
    module: str = ""
    """Path of the innermost module that ran; empty outside of the model."""
    place: Location | None = None
    """The innermost line outside torch: the user's or a library's."""
    called_from: Location | None = None
    """The user's line if `place` is in a library, or if several lines call the function around
    `place`."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()
    """Samples of the batch it happened in; empty if unknown."""
    batch: int = 0
    """Index of that batch in the step, with gradient accumulation."""
    reached: tuple[str, ...] = ()
    """Parameters whose gradients are non-finite because of it."""
    component: str | None = None
    """Name of the loss component it passes through."""
    order: int = 0
    """Index of the op in the step."""
    autocast: str | None = None
    """The autocast dtype; None if autocast is off."""
    through: str | None = None
    """`weight`, `buffer` or `batch`, if such a tensor brought the value into the step …"""
    through_name: str | None = None
    """… and its name."""
    common: str = ""
    """What the samples have in common and the others do not: `inputs about 30 times the usual`."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One remedy and its outcome on the failing step."""

    key: str
    text: str
    """What to do, in the imperative."""
    tried: Tried = "not tried"
    why: str = ""
    """Why it was not tried, or what is still wrong."""
    edits: tuple[SourceEdit, ...] = ()
    """The same as a change of the source, if it can be written as one."""


@dataclass(frozen=True, slots=True)
class Spike:
    """The origin of a finite but very large gradient."""

    component: str | None = None
    rows: tuple[int, ...] = ()
    batch: int = 0
    """Index of the batch that `rows` refers to, with gradient accumulation."""
    layers: tuple[str, ...] = ()
    """Parameters whose gradients grew most; `growth` has the factors."""
    growth: tuple[float, ...] = ()
    common: str = ""
    """What the samples have in common and the others do not; without `rows`, what all of the batch
    have in common and the batch before has not."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a failed step, and the remedies that fix it."""

    step: int
    symptom: Literal["nonfinite", "spike"]
    nature: Nature
    headline: str = ""
    """What happened and where, in one sentence."""
    summary: str = ""
    """The headline, and the remedy that worked."""
    origins: tuple[Origin, ...] = ()
    """The first one is the one to fix first."""
    spike: Spike | None = None
    trials: tuple[Trial, ...] = ()
    """Best first."""
    guilt: Guilt = "unknown"
    """What it takes to fail: this batch, these weights, or only both together."""
    samples: tuple[Any, ...] = ()
    """Data set indices of the failing samples, if known."""
    rank: int | None = None
    """The rank where it originates, with several ranks."""
    passes: int = 0
    seconds: float = 0.0
    loss: float | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def origin(self) -> Origin | None:
        return self.origins[0] if self.origins else None

    @property
    def guilty_rows(self) -> tuple[int, ...]:
        """The rows of the batch it comes from; empty if unknown."""
        culprit = self.origin or self.spike
        return () if culprit is None else culprit.rows

    @property
    def cure(self) -> Trial | None:
        """The best remedy that worked."""
        return next((trial for trial in self.trials if trial.tried == "cured"), None)

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        for origin in data["origins"]:
            for place in filter(None, (origin["place"], origin["called_from"])):
                place["file"] = name_file(place["file"])
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """Read the result of `to_dict`, also after a round trip through JSON.

        Raises TypeError or ValueError if `data` is no explanation.
        """
        origins = tuple(_read_origin(item) for item in data.get("origins", ()))
        spike = data.get("spike")
        known = {
            **data,
            "origins": origins,
            "spike": None if spike is None else Spike(**_tuples(spike)),
            "trials": tuple(_read_trial(item) for item in data.get("trials", ())),
            "samples": tuple(data.get("samples", ())),
            "notes": tuple(data.get("notes", ())),
        }
        explanation = cls(**known)
        for value, allowed in (
            (explanation.nature, Nature),
            (explanation.guilt, Guilt),
            *((trial.tried, Tried) for trial in explanation.trials),
            *((origin.phase, Phase) for origin in origins),
        ):
            if value not in get_args(allowed):
                raise ValueError(f"{value!r:.40} is not one of {', '.join(get_args(allowed))}")
        if not all(isinstance(text, str) for text in _texts(explanation)):
            raise TypeError("a text field is not a string")
        return explanation


def _read_trial(data: Mapping[str, Any]) -> Trial:
    edits = tuple(SourceEdit.from_dict(item) for item in data.get("edits", ()))
    if not all(edits):
        raise ValueError("an edit of a remedy is damaged")
    return Trial(**{**data, "edits": edits})


def _read_origin(data: Mapping[str, Any]) -> Origin:
    read = _tuples(data)
    for name in ("place", "called_from"):
        if read.get(name) is not None:
            read[name] = Location(**read[name])
    read["inputs"] = tuple(_read_operand(item) for item in read.get("inputs", ()))
    if read.get("output") is not None:
        read["output"] = _read_operand(read["output"])
    return Origin(**read)


def _texts(explanation: Explanation) -> list[Any]:
    """The texts that are shown unchanged."""
    of_origins = [
        text for origin in explanation.origins for text in (origin.kind, origin.cause, origin.op)
    ]
    of_trials = [
        text for trial in explanation.trials for text in (trial.key, trial.text, trial.why)
    ]
    return [explanation.headline, explanation.summary, *of_origins, *of_trials, *explanation.notes]


def _read_operand(data: Mapping[str, Any]) -> Operand:
    return Operand(**_tuples(data))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples: JSON has no tuples."""
    return {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}


# The sentences.

_PLAIN_GUILT: dict[str, Guilt] = {
    "poisoned-batch": "batch",
    "poisoned-weight": "weights",
    "poisoned-buffer": "weights",
}
GUILT_SENTENCES = {
    "batch": "The batch is the cause: it fails with older weights too.",
    "weights": "The weights are the cause: another batch fails with them too.",
    "together": "Only this batch with these weights fails: each works with another.",
}


INPUT_CONTAINS = "the input already contains"
"""How the cause of an origin in the data begins; the headline names the samples instead."""


def guilt_by_kind(origin: Origin | None) -> Guilt | None:
    """Batch or weights, if the kind of the origin alone decides it."""
    return None if origin is None else _PLAIN_GUILT.get(origin.kind)


def add_sentences(explanation: Explanation) -> Explanation:
    """The explanation with its headline and summary."""
    headline = _write_headline(explanation)
    titled = replace(explanation, headline=headline[:1].upper() + headline[1:])
    return replace(titled, summary=_summary(titled))


def add_trace(
    explanation: Explanation, traced: Sequence[Origin], trials: Sequence[Trial] = ()
) -> Explanation:
    """The explanation of a step that was run again, with what a trace of the step itself shows:
    an origin that the re-run did not show, or the op that made the bad values of an input, with
    the remedies that were tried on it."""
    if not traced or explanation.symptom == "spike":
        return explanation
    first, origin = traced[0], explanation.origin
    if origin is None:
        if explanation.nature == "compiler":
            return explanation
        return add_sentences(
            replace(
                explanation,
                nature="deterministic",
                origins=tuple(traced),
                guilt=guilt_by_kind(first) or "unknown",
            )
        )
    if origin.output is not None or first.output is None or not first.inputs:
        return explanation
    made = replace(
        origin,
        cause=first.cause,
        op=first.op,
        place=first.place,
        called_from=first.called_from,
        module=first.module,
        output=first.output,
        through=origin.inputs[0].role if origin.inputs else None,
        through_name=origin.inputs[0].name if origin.inputs else None,
    )
    origins, tried = (made, *explanation.origins[1:]), (*trials, *explanation.trials)
    order = {"cured": 0, "not cured": 1, "not tried": 2}
    tried = tuple(sorted(tried, key=lambda trial: order[trial.tried]))
    return add_sentences(replace(explanation, origins=origins, trials=tried))


def _summary(explanation: Explanation) -> str:
    parts = [explanation.headline]
    cure = explanation.cure
    if cure is not None:
        parts.append(f"Tried and cured: {cure.text}")
    elif explanation.trials and any(trial.tried == "not cured" for trial in explanation.trials):
        parts.append("None of the remedies that were tried fixed it.")
    return " ".join(parts)


def format_line(line: Location | None) -> str:
    """`train.py:31`; empty if unknown."""
    return "" if line is None else str(line)


def format_samples(explanation: Explanation) -> str:
    """`data-set sample 1871 (row 5 of the batch)`; empty if unknown."""
    origin, spike = explanation.origin, explanation.spike
    rows = origin.rows if origin else spike.rows if spike else ()
    if not rows:
        return ""
    common = origin.common if origin else spike.common if spike else ""
    shared = f" with {common}" if common else ""
    many, listed = "s" if len(rows) > 1 else "", _list_some(rows)
    if not explanation.samples:
        return f"sample{many} {listed}{shared}"
    known = _list_some(explanation.samples)
    return f"data-set sample{many} {known} (row{many} {listed} of the batch){shared}"


def _write_headline(explanation: Explanation) -> str:
    origin = explanation.origin
    if explanation.nature == "transient":
        return (
            "The same step succeeds when it is re-run unchanged: the failure is transient. "
            "Suspect the hardware, a race condition, or state outside this step."
        )
    if explanation.nature == "compiler":
        return (
            "The step succeeds in eager mode and fails when compiled: suspect the code that "
            "torch.compile generates."
        )
    if origin is not None:
        return _describe_origin(origin, explanation)
    if explanation.spike is not None:
        return _describe_spike(explanation)
    if explanation.notes:
        return f"Not explained: {explanation.notes[0]}."
    return "The step fails again, but the op where it starts was not traced."


def _describe_origin(origin: Origin, explanation: Explanation) -> str:
    where = f"at {format_line(origin.place)}" if origin.place else f"in {origin.op}"
    cause = origin.cause.rstrip(".")
    if origin.output is None and origin.inputs:  # no op of the step made it: this op reads it
        where = f"first used {where}"
    module = f" in {say_module(origin.module)}" if origin.module else ""
    backward = " (in backward)" if origin.phase == "backward" else ""
    samples = format_samples(explanation)
    if samples and cause.startswith(INPUT_CONTAINS):
        verb = "contain" if len(origin.rows) > 1 else "contains"
        cause = f"{samples} already {verb}{cause.removeprefix(INPUT_CONTAINS)}"
        if len(origin.rows) > 1:
            cause = cause.replace("when it leaves", "when they leave", 1)
        samples = ""
    rank = f" on rank {explanation.rank}" if explanation.rank is not None else ""
    carried = _CARRIERS.get(origin.through or "", "").format(name=origin.through_name)
    text = f"{cause}, {where}{module}{backward}{rank}" + (f", {samples}" if samples else "")
    return f"{text}{carried}."


_CARRIERS = {
    "weight": ". The step reads it from the parameter {name}",
    "buffer": ". The step reads it from the buffer {name}",
    "batch": ". The step reads it from its batch",
    "data": ". The step reads it from `{name}`",
}


def _describe_spike(explanation: Explanation) -> str:
    spike = explanation.spike
    assert spike is not None
    parts = []
    if spike.component:
        parts.append(f"loss component `{spike.component}`")
    if samples := format_samples(explanation):
        parts.append(samples)
    elif spike.common:
        parts.append(f"a batch with {spike.common}")
    if explanation.rank is not None:
        parts.insert(0, f"rank {explanation.rank}")
    source = f" comes from {', '.join(parts)}" if parts else ""
    if not spike.layers:
        return f"The gradient spike{source or ' is not limited to some layers or samples'}."
    grown = f" ({spike.growth[0]:.3g} times its usual norm)" if spike.growth else ""
    link = ", and" if source else ""
    return f"The gradient spike{source}{link} is largest in {spike.layers[0]}{grown}."


def _list_some(items: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(str(item) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
