"""Facts about losses: calls of loss functions, formulas, components, and backward passes."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.facts import FactTable, Names, Number, Numbers, Place, Text, TopicFacts, Whole


@dataclass(frozen=True)
class PredictionFacts(FactTable):
    """The prediction that was passed to a loss."""

    shape: Numbers | None
    dtype: Text
    low: Number
    high: Number
    made_by: Text
    made_whole: bool
    made_dim: Whole
    made_shape: Numbers
    made_at: Place
    sums_to_one: bool | None
    logs_of_one: bool | None
    clipped_by: Text
    clipped_share: Number
    clipped_at: Place


@dataclass(frozen=True)
class TargetFacts(FactTable):
    """The target that was passed to a loss."""

    shape: Numbers | None
    dtype: Text
    low: Number
    high: Number
    reach: Numbers
    outside_share: Number
    odd_rows: Number


@dataclass(frozen=True)
class BoundedOutput(FactTable):
    """The activation that bounds a prediction."""

    made_by: Text
    made_at: Place


@dataclass(frozen=True)
class LossFormulaFacts(TopicFacts):
    topic = "loss-formula"
    function: Text
    prediction: PredictionFacts
    target: TargetFacts
    crossed: bool
    repeated: Text
    """The side that is used several times: "prediction" or "target"."""
    bounded: BoundedOutput


@dataclass(frozen=True)
class LossCallFacts(LossFormulaFacts):
    topic = "loss-call"
    reduction: Text
    weighted: bool
    value: Number
    classes: Whole
    labels: Whole
    ignored: Whole
    ignore_index: Whole
    nonfinite: bool
    """Whether the loss that is trained on is NaN or infinite, where all labels are ignored."""
    outside: Whole
    outside_values: Numbers
    sample: Whole
    tied: bool
    log_target: bool
    swapped: bool
    """Whether the target has a graph and the prediction has none."""
    raised: bool
    error: Text


@dataclass(frozen=True)
class LossSoftmaxFacts(TopicFacts):
    topic = "loss-softmax"
    function: Text
    axis: Whole
    size: Whole
    shape: Numbers | None
    batch_axis: bool


@dataclass(frozen=True)
class LossScoresFacts(TopicFacts):
    topic = "loss-scores"
    function: Text
    classes: Whole
    rows: Whole
    prediction: PredictionFacts


@dataclass(frozen=True)
class SteppingOptimizer(FactTable):
    """An optimizer that steps on a loss."""

    kind: Text
    lr: Number
    momentum: Number


@dataclass(frozen=True)
class SummedLossFacts(TopicFacts):
    topic = "summed-loss"
    function: Text
    rows: Whole
    elements: Whole
    factor: Number
    beside_means: Names
    optimizers: list[SteppingOptimizer]


@dataclass(frozen=True)
class ForwardCounts(FactTable):
    """Forward passes since the last step, by how they ran."""

    with_graph: Whole
    without_graph: Whole
    disabled: Whole
    inference: Whole


@dataclass(frozen=True)
class GraphExit(FactTable):
    """The call that left the graph."""

    function: Text
    place: Place


@dataclass(frozen=True)
class BackwardRootFacts(TopicFacts):
    topic = "backward-root"
    graph: bool
    reached: Whole
    leaf: bool
    grad_enabled: bool | None
    forwards: ForwardCounts
    forward_place: Place
    trainable: Whole
    parameters: Whole
    cut: GraphExit
    backward: bool | None


@dataclass(frozen=True)
class LossComponentFacts(TopicFacts):
    topic = "loss-component"
    kind: Text
    name: Text
    weight: Number
    on_data: bool
    own: Names
    reached: Names
    cut: Text
    steps: Whole
    scores_before: Number
    scores_after: Number
    uneven_before: Number
    uneven_after: Number


@dataclass(frozen=True)
class MovingTargetFacts(TopicFacts):
    topic = "moving-target"
    function: Text
    shared: Names
    shared_count: Whole
    factor: Number
    names: Names
    """The names of one network, if it is its own target network."""
