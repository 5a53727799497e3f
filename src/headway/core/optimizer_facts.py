"""Facts about optimizers, schedules, frozen and loaded weights, precision, and trial updates."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.facts import (
    FactTable,
    Names,
    Number,
    Numbers,
    Place,
    Table,
    Text,
    TopicFacts,
    Whole,
)


@dataclass(frozen=True)
class OptimizerCoverageFacts(TopicFacts):
    topic = "optimizer-coverage"
    looking: bool
    steps: Whole
    optimizers: Whole
    unoptimized: Names
    unoptimized_count: Whole
    unoptimized_elements: Whole
    trainable: Whole
    loaded_body: bool
    passed_through: bool
    stale: Names
    stale_count: Whole
    held: Whole
    device: Names
    dtype: Names
    wrapper: Text
    paired: Whole
    optimizer_at: Place


@dataclass(frozen=True)
class ScheduleFacts(TopicFacts):
    topic = "schedule"
    schedule: Text
    steps: Number
    optimizer_steps: Number
    batches: Number
    pass_length: Number
    epochs: Number
    horizon_name: Text
    horizon: Number
    collapses_after: Number
    metric: Text
    mode: Text
    metric_from: Number
    metric_to: Number
    resting: Whole


@dataclass(frozen=True)
class ResumeFacts(TopicFacts):
    topic = "resume"
    optimizer: Text
    fresh: bool
    stateful: bool
    rate: Number
    before: Text
    before_steps: Whole
    before_rate: Number
    same_settings: bool
    same_objects: bool
    loaded: bool
    checkpoint: Text
    checkpoint_moments: bool
    checkpoint_used: bool
    restored_rate: Number
    rate_by_schedule: bool
    schedule_restored: bool
    restarted: bool


@dataclass(frozen=True)
class FrozenFacts(TopicFacts):
    topic = "frozen"
    count: Whole


@dataclass(frozen=True)
class FreezeAttemptFacts(TopicFacts):
    topic = "freeze-attempt"
    kind: Text
    attribute: Text
    where: Text
    names: Names
    count: Whole
    undone_at: Place


@dataclass(frozen=True)
class FrozenMovedFacts(TopicFacts):
    topic = "frozen-moved"
    names: Names
    count: Whole
    optimizer: Text
    gradients: Whole
    zero_gradients: Whole
    elements: Whole
    weight_decay: Number
    momentum: Number
    between_steps: bool
    factor: Number


@dataclass(frozen=True)
class FreezeChangeFacts(TopicFacts):
    topic = "freeze-change"
    step: Whole
    to: bool
    names: Names
    count: Whole
    meant: bool


@dataclass(frozen=True)
class ClipScaledFacts(TopicFacts):
    topic = "clip-scaled"
    scaled: bool
    scale: Number
    function: Text
    limit: Number
    norm: Number


@dataclass(frozen=True)
class ScaledReadingFacts(TopicFacts):
    topic = "scaled-reading"
    scale: Number
    tensors: Whole
    added: Number
    norm: Number
    true_norm: Number


@dataclass(frozen=True)
class AutocastRegion(FactTable):
    """A region of autocast."""

    asked: bool | None
    enabled: bool
    device_type: Text
    dtype: Text
    place: Place


@dataclass(frozen=True)
class AutocastFacts(TopicFacts):
    topic = "autocast"
    entered: Whole
    low_share: Number
    inside_share: Number
    opaque_share: Number
    ops: Whole
    device: Text
    regions: list[AutocastRegion]
    disabling: list[AutocastRegion]


@dataclass(frozen=True)
class LowPrecisionUpdateFacts(TopicFacts):
    topic = "low-precision-update"
    tensors: Names
    tensor_count: Whole
    dtype: Text
    optimizer: Text
    moved: Whole


@dataclass(frozen=True)
class HalfCopiesFacts(TopicFacts):
    topic = "half-copies"
    names: Names
    count: Whole
    zero_share: Number
    largest: Number
    loss: Number
    scaler: bool


UNUSED = "unused"
"""The `function` of a graph that no function cuts: the loss does not use what is computed."""


@dataclass(frozen=True)
class GraphCutFacts(TopicFacts):
    topic = "graph-cut"
    function: Text
    parameters: Names
    count: Whole


@dataclass(frozen=True)
class ClearedGradientsFacts(TopicFacts):
    topic = "cleared-gradients"
    optimizer: Text
    steps: Whole
    lost: Whole
    empty: bool


@dataclass(frozen=True)
class UncalledModuleFacts(TopicFacts):
    topic = "uncalled-module"
    modules: Names
    """Paths of modules; the parameters below them are used nowhere."""


@dataclass(frozen=True)
class BypassedModuleFacts(TopicFacts):
    topic = "bypassed-module"
    modules: Names
    """Paths of modules that are never called: what they wrap or replaced still runs."""


@dataclass(frozen=True)
class LostWriteFacts(TopicFacts):
    topic = "lost-write"
    weights: Names
    count: Whole


@dataclass(frozen=True)
class AnomalyModeFacts(TopicFacts):
    topic = "anomaly-mode"
    backwards: Whole
    on: Whole


@dataclass(frozen=True)
class OptimizerFacts(TopicFacts):
    topic = "optimizer"
    optimizer: Text
    lr: Number
    eps: Number
    weight_decay: Number
    momentum: Number
    betas: Numbers
    maximize: bool
    fused: bool
    dtypes: Names
    initial_lr: Number
    max_lr: Number


@dataclass(frozen=True)
class TrialFacts(OptimizerFacts):
    topic = "trial"
    loss: Number
    losses: Table
    nonfinite: Numbers
    noise: Number
    slope: Number
    gradient_slope: Number
    stepped_slope: Number
    weight_norm: Number
    update_norm: Number
    gradient_norm: Number
    stepped_gradient_norm: Number
    matrix_norm: Number
    shrinking: Number
    against_weights: Number
    number: Whole
    made: Whole
    optimizers: Number
    backwards: Whole
    lr_peak: Number
    lr_before: Number
    made_at: Place
    step_place: Place
    own_step: Place
    since: Numbers
    tasks: Numbers
    steps: Whole
    bad_losses: Whole


@dataclass(frozen=True)
class ObjectivePart(FactTable):
    """A term of the total loss."""

    name: Text
    value: Number
    weight: Number
    mean: bool
    known: bool
    place: Place


@dataclass(frozen=True)
class ObjectiveFacts(TopicFacts):
    topic = "objective"
    root: Number
    parts: list[ObjectivePart]
    divided: bool
    backwards: Whole
    one_line: bool
    same_ops: bool
    same_weights: bool
    same_data: bool
    gradients_kept: Number
    maximize: bool
    of_models: bool
    optimizers: Number
    optimizer: Text


@dataclass(frozen=True)
class OverfitFacts(TopicFacts):
    topic = "overfit"
    start: Number
    end: Number
    share: Number
    learned: bool
    steps: Whole
    rate: Number


@dataclass(frozen=True)
class MissedClipFacts(TopicFacts):
    topic = "missed-clip"
    optimizer: Text
    clipped: Names
    clipped_count: Whole
    stepped: Names
    times: Whole
    other_optimizer: bool
    nothing: bool
    when: Text


@dataclass(frozen=True)
class LeftoverGradientFacts(TopicFacts):
    topic = "leftover-gradients"
    optimizer: Text
    names: Names
    behind: Names
    times: Whole


@dataclass(frozen=True)
class ScheduleResumeFacts(TopicFacts):
    topic = "schedule-resume"
    schedule: Text
    saved_at: Whole
    stands_at: Whole
    advanced: Whole
    restored: bool
    continues: bool
    rate: Number
    restored_rate: Number
    own_rate: Number
    """Of the schedule at its own position, where the saved run began with the same base rate."""
