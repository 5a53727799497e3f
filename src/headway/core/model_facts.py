"""Facts about the model: parameters, activations, initial weights, modes, and errors of an op."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.facts import (
    FactTable,
    Names,
    Number,
    Numbers,
    Place,
    Table,
    Tables,
    Text,
    TopicFacts,
    Whole,
)


@dataclass(frozen=True)
class ParameterFacts(TopicFacts):
    topic = "parameters"
    names: Names
    numel: Numbers
    dtypes: Names
    trainable: Numbers | None
    optimized: Numbers | None
    norm_or_bias: Numbers | None
    types: Names


@dataclass(frozen=True)
class PrecisionFacts(TopicFacts):
    topic = "precision"
    weights: Names
    compute: Names
    scaler: bool | None


@dataclass(frozen=True)
class ActivationFacts(TopicFacts):
    topic = "activation"
    member: Text
    kind: Text


@dataclass(frozen=True)
class AttentionFacts(TopicFacts):
    topic = "attention"
    member: Text


@dataclass(frozen=True)
class OutputLogitsFacts(TopicFacts):
    topic = "output-logits"


@dataclass(frozen=True)
class LinearChainFacts(TopicFacts):
    topic = "linear-chain"
    members: Names
    length: Whole
    widths: Numbers
    layers: Whole
    nonlinearities: Number
    neighbours: bool


@dataclass(frozen=True)
class InitialWeight(FactTable):
    """A weight before the first step."""

    name: Text
    constant: Number
    identical_units: bool
    units: Whole
    inputs: Whole
    grouped: bool
    trainable: bool
    last: bool
    place: Place


@dataclass(frozen=True)
class InitialWeightsFacts(TopicFacts):
    topic = "initial-weights"
    stuck: Names
    """Weights that started at 0 and have had a gradient of exactly 0 since."""
    weights: list[InitialWeight]
    copies: Names
    equal_gradients: bool
    made_by_torch: bool


@dataclass(frozen=True)
class InitialSignalFacts(TopicFacts):
    topic = "initial-signal"
    members: Names
    inputs: Numbers
    outputs: Numbers
    norms: Number
    squashing: Number
    tied: bool


@dataclass(frozen=True)
class SpectralNormFacts(TopicFacts):
    topic = "spectral-norm"
    member: Text
    norm: Number
    training: bool
    look: Whole


@dataclass(frozen=True)
class TrainingModeFacts(TopicFacts):
    topic = "training-mode"
    model: Text
    training: bool
    dropouts_off: Names
    norms_off: Names
    dropouts_on: Whole
    norms_on: Whole
    calls_off: Whole
    calls_on: Whole
    wholly_trained: bool
    latched: bool
    was: Text
    after_evaluation: bool
    momentum_zero: Names
    steps: Whole


@dataclass(frozen=True)
class EvaluationFacts(TopicFacts):
    topic = "evaluation"
    model: Text
    training: bool | None
    dropouts: Names
    norms: Names
    calls: Whole
    unused_statistics: Names
    kept_statistics: bool
    made_at: Place
    call_place: Place
    measured_by: Text


@dataclass(frozen=True)
class UnregisteredFacts(TopicFacts):
    topic = "unregistered"
    owner: Text
    attribute: Text
    kind: Text
    holds: Names
    count: Whole
    tensors: Whole
    elements: Whole


@dataclass(frozen=True)
class DropoutFacts(TopicFacts):
    topic = "dropout"
    member: Text
    p: Number
    kept: Number


@dataclass(frozen=True)
class MetTensor(FactTable):
    """A tensor of an op whose tensors are on several devices."""

    name: Text
    parameter: bool
    device: Text
    shape: Numbers


@dataclass(frozen=True)
class DeviceMismatchFacts(TopicFacts):
    topic = "device-mismatch"
    devices: Names
    models_on: Names
    op: Text
    module: Text
    tensors: list[MetTensor]
    crashed: bool
    error: Text


@dataclass(frozen=True)
class NeededTensor(FactTable):
    """The tensor that a backward pass still needed."""

    op: Text
    module: Text
    place: Place


@dataclass(frozen=True)
class InplaceFacts(TopicFacts):
    topic = "inplace"
    kind: Text
    op: Text
    by_optimizer: bool
    needed: NeededTensor
    module: Text
    maker: Text
    error: Text
    crash: Place
    shape: Numbers
    version: Whole
    expected: Whole


@dataclass(frozen=True)
class InventoryFacts(TopicFacts):
    topic = "inventory"
    models: Tables
    optimizers: Tables


@dataclass(frozen=True)
class MemoryFacts(TopicFacts):
    topic = "memory"
    kind: Text
    phases: Table
    epochs: Numbers


@dataclass(frozen=True)
class AveragedModelFacts(TopicFacts):
    topic = "averaged-model"
    module: Text
    layers: Whole
    example: Text
    batches: Whole
    distance: Number


@dataclass(frozen=True)
class SharedModuleFacts(TopicFacts):
    topic = "shared-module"
    kind: Text
    paths: Names
    count: Whole
    elements: Whole


@dataclass(frozen=True)
class TiedWeightsFacts(TopicFacts):
    topic = "tied-weights"
    copies: bool
    asked: bool
    parted: bool
    """Whether they were one parameter before one of them was replaced."""
    embedding: Text
    output: Text
    shape: Numbers
