"""One op of a traced pass, and what is kept of one whose result was bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.explain.explanation import Operand, Phase
from headway.torch_adapters.op_schema import user_op_name

if TYPE_CHECKING:
    from headway.explain.origin.bad_call import OriginKind
    from headway.torch_adapters.frames import FrameContext
    from headway.torch_adapters.module_stack import RunningModule
    from headway.torch_adapters.op_schema import OpSchema


@dataclass(slots=True)
class TracedCall:
    """An op as it ran. It keeps no tensor alive."""

    order: int
    facts: OpSchema
    module: RunningModule
    around: FrameContext
    phase: Phase = "forward"
    node: str | None = None
    """Autograd's node that was running."""
    forward: TracedCall | None = None
    """The op which that node belongs to."""
    autocast: str | None = None
    batch: int = 0
    """Which of the step's batches was being worked on."""
    number: int | None = None
    """Of the node of autograd it made."""
    dims: int = 0
    """Dimensions of its first tensor."""
    of_whole_numbers: bool = False
    """A cast of integers or truth values."""
    digest: int | None = None
    """Of memory that nobody has written yet."""
    trouble: BadResult | None = None

    @property
    def op(self) -> str:
        """As the user calls it."""
        return user_op_name(self.facts.aten, self.module.kind, self.dims)

    @property
    def by_hand(self) -> bool:
        """Run by Python code inside of backward: a custom `backward`, or a hook."""
        return self.phase == "backward" and self.around.place is not None

    @property
    def located_call(self) -> TracedCall:
        """The call that knows line and module: the forward op, for one that autograd ran."""
        if self.phase == "forward" or self.by_hand or self.forward is None:
            return self
        return self.forward.located_call

    def same_code(self, other: TracedCall | None) -> bool:
        """Whether both come from the same op of the same line; one may be a recomputation."""
        if other is None:
            return False
        mine, others = self.located_call, other.located_call
        return mine is others or (
            mine.around.place is not None
            and (mine.op, mine.module.path, mine.around.place)
            == (others.op, others.module.path, others.around.place)
        )


@dataclass(slots=True)
class BadLeaf:
    """A tensor that was bad without an op of this pass having made it so."""

    operand: Operand
    kind: OriginKind
    rows: tuple[int, ...] = ()
    deliberate: bool = False
    """A mask: its infinities are meant."""
    maker: TracedCall | None = None
    """Who made it, if that was in this pass: `torch.empty`, or a literal."""
    unseen: bool = False
    """Made in this pass and finite then: something torch does not see wrote into it."""


@dataclass(slots=True)
class BadInput:
    """Where the bad numbers of one input come from."""

    name: str
    flags: int
    writers: tuple[int, ...] = ()
    leaf: BadLeaf | None = None
    deliberate: bool = False


@dataclass(slots=True)
class BadResult:
    """What was found out about a call while its tensors were there."""

    flags: int
    sources: tuple[BadInput, ...] = ()
    """The inputs that were bad."""
    deliberate: bool = False
    """All of it are infinities that somebody wrote on purpose."""
    written: bool = False
    """By this op."""
    fresh: bool = False
    """Some of it the op made of finite numbers, next to what it was given."""
    kind: OriginKind | None = None
    """None where it only passed on what it was given."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()
