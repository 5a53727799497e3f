"""Facts about sequences of tokens: targets, end tokens, padding and positions."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.facts import Number, Numbers, Text, TopicFacts, Whole


@dataclass(frozen=True)
class TokenTargetFacts(TopicFacts):
    topic = "token-targets"
    module: Text
    function: Text
    shift: Whole
    copies: bool
    share: Number
    targets: Whole


@dataclass(frozen=True)
class EndTokenFacts(TopicFacts):
    topic = "end-token"
    token: Whole
    learned: bool
    pads: bool
    rows: Whole
    batches: Whole
    attended: Number
    ends_longest: bool
    pad_is_end: bool
    """The script sets the padding token to the end token, and there is no attention mask."""
    stops_before: Number
    ignore_index: Whole
    ignored_inside: Whole
    """Targets between others that the loss ignores although they are tokens of the input."""
    rows_inside: Whole


@dataclass(frozen=True)
class TokenWeightFacts(TopicFacts):
    topic = "token-weights"
    function: Text
    steps: Whole
    uneven: Whole
    ratio: Number
    counts: Numbers
    equal_weights: bool
    ignored: bool


@dataclass(frozen=True)
class PaddingFacts(TopicFacts):
    topic = "padding-dependence"
    module: Text
    pad: Whole
    content: Whole
    length: Whole
    more_padding: Number
    no_padding: Number
    unused_mask: bool
    """The batch has a mask of the padding that the model is not given."""
    op: Text


@dataclass(frozen=True)
class PositionFacts(TopicFacts):
    topic = "position-dependence"
    module: Text
    table: Text
    ignored: bool
    ratio: Number
    positions: Whole
    trial: Text
