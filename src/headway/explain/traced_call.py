"""One op of a traced pass, and what is recorded if its result is non-finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.explain.explanation import Operand, Phase
from headway.torch_adapters.op_schema import user_op_name

if TYPE_CHECKING:
    from headway.explain.origin.bad_call import OriginKind
    from headway.torch_adapters.module_stack import NamedModule, RunningModule
    from headway.torch_adapters.op_recording.op_frames import FrameContext
    from headway.torch_adapters.op_schema import OpSchema


@dataclass(slots=True)
class TracedCall:
    """An op that ran. It keeps no tensor alive."""

    order: int
    facts: OpSchema
    module: RunningModule | NamedModule
    around: FrameContext
    phase: Phase = "forward"
    node: str | None = None
    """Name of the autograd node that was running."""
    forward: TracedCall | None = None
    """The forward op of that node."""
    autocast: str | None = None
    batch: int = 0
    """Index of the batch in the step."""
    number: int | None = None
    """Number of the autograd node it created."""
    dims: int = 0
    """Dimensions of its first tensor."""
    from_integers: bool = False
    """A cast of integers or booleans."""
    digest: int | None = None
    """Checksum of uninitialised memory."""
    trouble: BadResult | None = None

    @property
    def op(self) -> str:
        """The name that users know."""
        return user_op_name(self.facts.aten, self.module.kind, self.dims)

    @property
    def by_hand(self) -> bool:
        """Whether Python code inside backward ran it: a custom `backward` or a hook."""
        return self.phase == "backward" and self.around.place is not None

    @property
    def located_call(self) -> TracedCall:
        """The call with a line and module: the forward op, if autograd ran this one."""
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
    """A non-finite tensor that no op of this pass computed."""

    operand: Operand
    kind: OriginKind
    rows: tuple[int, ...] = ()
    deliberate: bool = False
    """A mask: its infinities are intended."""
    maker: TracedCall | None = None
    """The call that created it, if in this pass: `torch.empty`, or a literal."""
    unseen: bool = False
    """Created finite in this pass, then written by something that torch does not see."""


@dataclass(slots=True)
class BadInput:
    """Where the non-finite values of one input come from."""

    name: str
    flags: int
    writers: tuple[int, ...] = ()
    leaf: BadLeaf | None = None
    deliberate: bool = False
    owner: tuple[str, str] | None = None
    """(role, name), if it is a parameter, a buffer or a batch that an op has written to."""


@dataclass(slots=True)
class BadResult:
    """What was found about a call while its tensors were alive."""

    flags: int
    sources: tuple[BadInput, ...] = ()
    """The non-finite inputs."""
    deliberate: bool = False
    """All of it are intended infinities."""
    written: bool = False
    """Whether this op wrote them, as literals."""
    fresh: bool = False
    """The op also made non-finite values from finite ones."""
    kind: OriginKind | None = None
    """None if it only passed on non-finite inputs."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()
