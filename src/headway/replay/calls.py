"""One op of a traced pass, and what is kept of one whose result was bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.replay.explanation import Operand, Phase
from headway.replay.op_names import users_op

if TYPE_CHECKING:
    from headway.replay.births import Kind
    from headway.replay.frames import Around
    from headway.replay.module_paths import Running
    from headway.replay.op_facts import OpFacts


@dataclass(slots=True)
class Call:
    """An op as it ran. It keeps no tensor alive."""

    order: int
    facts: OpFacts
    module: Running
    around: Around
    phase: Phase = "forward"
    node: str | None = None
    """Autograd's node that was running."""
    forward: Call | None = None
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
    trouble: Trouble | None = None

    @property
    def op(self) -> str:
        """As the user calls it."""
        return users_op(self.facts.aten, self.module.kind, self.dims)

    @property
    def by_hand(self) -> bool:
        """Run by Python code inside of backward: a custom `backward`, or a hook."""
        return self.phase == "backward" and self.around.place is not None

    @property
    def told_by(self) -> Call:
        """The call that knows line and module: the forward op, for one that autograd ran."""
        if self.phase == "forward" or self.by_hand or self.forward is None:
            return self
        return self.forward.told_by

    def same_code(self, other: Call | None) -> bool:
        """Whether both come from the same op of the same line; one may be a recomputation."""
        if other is None:
            return False
        mine, others = self.told_by, other.told_by
        return mine is others or (
            mine.around.place is not None
            and (mine.op, mine.module.path, mine.around.place)
            == (others.op, others.module.path, others.around.place)
        )


@dataclass(slots=True)
class Leaf:
    """A tensor that was bad without an op of this pass having made it so."""

    operand: Operand
    kind: Kind
    rows: tuple[int, ...] = ()
    deliberate: bool = False
    """A mask: its infinities are meant."""
    maker: Call | None = None
    """Who made it, if that was in this pass: `torch.empty`, or a literal."""
    unseen: bool = False
    """Made in this pass and finite then: something torch does not see wrote into it."""


@dataclass(slots=True)
class Source:
    """Where the bad numbers of one input come from."""

    name: str
    flags: int
    writers: tuple[int, ...] = ()
    leaf: Leaf | None = None
    deliberate: bool = False


@dataclass(slots=True)
class Trouble:
    """What was found out about a call while its tensors were there."""

    flags: int
    sources: tuple[Source, ...] = ()
    """The inputs that were bad."""
    deliberate: bool = False
    """All of it are infinities that somebody wrote on purpose."""
    written: bool = False
    """By this op."""
    fresh: bool = False
    """Some of it the op made of finite numbers, next to what it was given."""
    kind: Kind | None = None
    """None where it only passed on what it was given."""
    inputs: tuple[Operand, ...] = ()
    output: Operand | None = None
    rows: tuple[int, ...] = ()
