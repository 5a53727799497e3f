"""Facts about data: inputs, labels, targets, batches, loaders, and what an output depends on."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.facts import (
    FactTable,
    Names,
    Number,
    Numbers,
    Place,
    Rows,
    Text,
    TopicFacts,
    Whole,
)


@dataclass(frozen=True)
class LabelFacts(TopicFacts):
    topic = "labels"
    loss: Text
    samples: Whole
    calls: Whole
    classes: Whole
    seen: Whole
    counts: Rows
    weighted: bool
    dense: bool
    changes: Whole
    neighbours: Whole
    pad_id: Whole
    pad_share: Number
    pad_rows: Number
    pad_elsewhere: Number
    pad_shortest: Whole
    pad_longest: Whole


@dataclass(frozen=True)
class TargetScaleFacts(TopicFacts):
    topic = "targets"
    loss: Text
    samples: Whole
    rms: Number
    mean: Number
    std: Number
    prediction_rms: Number


@dataclass(frozen=True)
class SampleFitFacts(TopicFacts):
    topic = "sample-fit"
    loss: Text
    classes: Whole
    seen: Whole
    entropy: Number
    majority: Number
    early_loss: Number
    late_loss: Number
    late_steps: Whole
    late_samples: Whole
    wrong: Number
    wrong_when_sure: Number
    sureness: Number
    sureness_of_rest: Number
    class_errors: Rows
    pair: Numbers
    steps: Whole
    alone: Number
    passes: Number
    inputs: Whole
    contradictory: Whole
    own_fall: Number
    agreement: Number
    agreement_pairs: Whole
    early_agreement: Number


@dataclass(frozen=True)
class InputScaleFacts(TopicFacts):
    topic = "input-scale"
    module: Text
    batches: Whole
    samples: Whole
    rms: Number
    mean: Number
    std: Number
    max: Number
    zeros: Number
    whole: bool
    scaled_at: Place
    converted_at: Place


@dataclass(frozen=True)
class TargetVarietyFacts(TopicFacts):
    topic = "target-variety"
    loss: Text
    batches: Whole
    samples: Whole
    varying: Whole


@dataclass(frozen=True)
class InputVarietyFacts(TargetVarietyFacts):
    topic = "input-variety"
    smallest: Whole
    features: Whole


@dataclass(frozen=True)
class EmptyBatchFacts(TopicFacts):
    topic = "empty-batch"
    what: Text
    shape: Numbers


@dataclass(frozen=True)
class BatchSizeFacts(TopicFacts):
    topic = "batch-size"
    collapsed: Whole
    whole: Whole
    samples: Whole
    meant: Whole
    whence: Text
    drawn: Whole
    wanted: bool


@dataclass(frozen=True)
class EpochOrderFacts(TopicFacts):
    topic = "epoch-order"
    how: Text
    kind: Text
    sampler: Text
    why: Text
    batches: Whole


@dataclass(frozen=True)
class WorkerSeedFacts(TopicFacts):
    topic = "worker-seeds"
    workers: Whole
    seen: Whole
    shared: Names


@dataclass(frozen=True)
class TransferFacts(TopicFacts):
    topic = "transfer"
    copies: Whole
    steps: Whole
    bytes_per_step: Number
    pageable_per_step: Number
    blocking_per_step: Number


@dataclass(frozen=True)
class SampleDependenceFacts(TopicFacts):
    topic = "sample-dependence"
    module: Text
    verdict: Text
    size: Whole
    axis: Whole
    op: Text
    by_design: Text


@dataclass(frozen=True)
class ModuleDependence(FactTable):
    """Whether the output of one module depends on its input."""

    module: Text
    ignored: bool
    op: Text
    outputs: Rows
    place: Place


@dataclass(frozen=True)
class InputDependenceFacts(TopicFacts):
    topic = "input-dependence"
    ignored: bool
    modules: list[ModuleDependence]


@dataclass(frozen=True)
class FutureDependenceFacts(TopicFacts):
    topic = "future-dependence"
    module: Text
    leaks: bool
    ratio: Number
    positions: Whole
    op: Text


@dataclass(frozen=True)
class LabelCopyFacts(TopicFacts):
    topic = "label-copy"
    column: Whole
    likeness: Number
    next: Number
    one_hot: Numbers
    samples: Whole
    classes: Whole
    columns: Whole
    marked: Numbers
    marked_best: Whole
    marked_constant: bool
    marked_count: Whole
    overlapping: Whole
    others_apart: Number


@dataclass(frozen=True)
class SharedRowsFacts(TopicFacts):
    topic = "shared-rows"
    module: Text
    trained: Number
    validated: Number
    shared: Number
    covered: Number
    alike: Number
    inside: bool
    """Whether validation takes a part of a data set that is trained on as a whole."""


@dataclass(frozen=True)
class LabelIndexFacts(TopicFacts):
    topic = "label-index"
    function: Text
    labels: Whole
    outside: Whole
    outside_values: Numbers
    classes: Whole
    raised: bool


@dataclass(frozen=True)
class RankReplicasFacts(TopicFacts):
    topic = "rank-replicas"
    ranks: Whole
    replicas: Whole
    parameters: Whole
    apart: Names
    apart_count: Whole
    exchanged: Whole
    equal_at: Whole
    listens: bool
    """Averages of weights are followed, in a script with a wrapper …"""
    averaged: bool
    """… and were seen: the ranks may differ in between."""


@dataclass(frozen=True)
class RankNoiseFacts(TopicFacts):
    topic = "rank-noise"
    ranks: Whole
    samples: Whole
    shared: Whole
    same_batches: Whole
    sampled: bool
    """Whether replicas draw their batches themselves, without a loader."""


@dataclass(frozen=True)
class SamplerReachFacts(TopicFacts):
    topic = "sampler-reach"
    sampler: Text
    reached: Whole
    samples: Whole


@dataclass(frozen=True)
class StoredSamplesFacts(TopicFacts):
    topic = "stored-samples"
    dataset: Text
    attribute: Text
    rows: Whole
    watched: Whole
