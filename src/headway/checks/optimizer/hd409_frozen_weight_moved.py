from __future__ import annotations

from collections.abc import Iterable

from headway.checks.checkpoint_tensors import (
    CHECKPOINT,
    CheckpointSequence,
    SavedCheckpoint,
    is_follower,
)
from headway.core.check import Check, Needs
from headway.core.facts import LISTED, say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import WAS, plural, say
from headway.core.optimizer_facts import FreezeAttemptFacts, FrozenMovedFacts
from headway.core.records import EventRecord, Header, SetupRecord, TensorRecord, record_at


class FrozenWeightMoved(Check):
    """A weight that is meant to be frozen changes.

    ## What it checks
    Parameters with `requires_grad` False that an optimizer step changes, or that the script changes
    between two steps together with the others; rows whose gradients the script sets to 0 and that
    weight decay moves all the same; and freezes without effect: `module.requires_grad =
    False`, a mistyped attribute on a parameter, a condition on names that matches nothing, a freeze
    of a copy, and one that is undone before the first step. In two checkpoints of a run: weights
    that changed although the optimizer has no moments for them.

    ## Why it matters
    `module.requires_grad = False` sets an attribute that nothing reads. An optimizer that saw a
    gradient before the freeze continues to change the weight by momentum and weight decay. A
    pretrained body that drifts unnoticed is worse than one that is trained on purpose.

    ## How it is measured
    The frozen parameters of an optimizer before and after a step, bitwise, and those of the model
    from one step to the next: a change counts if trained weights change at the same time, or if it
    multiplies the whole weight by one number (weight decay by hand). Elements whose gradient is set
    to 0 count if they are the same, and change, in three steps in a row. Also attributes of modules
    and parameters; and every change of `requires_grad` up to the first step. In checkpoints,
    weights are compared bitwise; whether a weight has no moments is determined by name, order or
    shape, or not at all.

    ## False alarms
    Freezing everything and unfreezing a part is not an undone freeze: some of it stays frozen. An
    EMA teacher, a target network and a codebook are changed by hand on purpose: a weight that moves
    towards another one, or that moves alone, is not reported. BatchNorm's running statistics are
    not parameters. In checkpoints it is information if every weight without moments changes: an
    optimizer without moments, or whose state was not saved, may train them all.

    ## What to do
    Call `module.requires_grad_(False)`, and pass only the trained parameters to the optimizer.
    After a freeze in the middle of a run, set the gradients to None.

    ## References
    open-mmlab/mmpretrain#702 (as reported by TrainCheck); PyTorch, "Autograd mechanics".
    """

    code = "HD409"
    name = "frozen-weight-moved"
    severity = Severity.ERROR
    summary = "a weight meant to be frozen changes"
    needs = Needs(
        kinds=(SetupRecord, TensorRecord, EventRecord),
        topics=("freeze-attempt", "frozen-moved"),
        roles=("weight", "moment"),
        events=(CHECKPOINT,),
        checkpoints=2,
        decisive=("moment",),
    )
    explains = ("HD306", "HD415")

    def start(self) -> None:
        self.saved = CheckpointSequence()
        self.rested: set[str] = set()
        """Weights without moments that did not change between two checkpoints."""

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: SetupRecord | TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.saved.announce(record)
        elif isinstance(record, TensorRecord):
            self.saved.add(record)
        else:
            yield from self._at_setup(record)

    def finish(self) -> Iterable[Finding]:
        pair = self.saved.pair()
        if pair is not None:
            yield from self._between(*pair)

    def _between(self, now: SavedCheckpoint, before: SavedCheckpoint) -> Iterable[Finding]:
        then = before.trained_by()
        frozen = [
            name
            for name, moment in now.trained_by().items()
            if moment is None and name in then and then[name] is None
            if now.weights[name][4] > 1 and not is_follower(name)
        ]
        moved = [name for name in frozen if now.same(before, name) is False]
        still_once = self.rested.intersection(moved)
        self.rested.update(name for name in frozen if now.same(before, name))
        if not moved:
            return
        # If all of them always change, an optimizer without moments may train them.
        sure = len(moved) < len(frozen) or bool(still_once)
        yield self.find(
            record_at(now.moment),
            f"{len(moved)} of {len(frozen)} weights without moments in the optimizer changed "
            f"between "
            f"{before.name} (step {before.step}) and {now.name} (step {now.step}): "
            f"{say_list(moved)}",
            subject=moved[0],
            severity=Severity.ERROR if sure else Severity.INFO,
            where=Where(file=now.path, module=moved[0]),
            remedies=[
                "If they are meant to be frozen, look for what changes them: a second optimizer, "
                "an initialisation, or a load between the two.",
            ],
            path=now.path,
            before=before.path,
            tensors=moved[:LISTED],
            tensor_count=len(moved),
            frozen=len(frozen),
        )

    def _at_setup(self, record: SetupRecord) -> Iterable[Finding]:
        facts = FreezeAttemptFacts.of(record)
        names = facts.names
        count = facts.count or len(names)
        if count <= 0 or not names:
            return
        if record.topic == "frozen-moved":
            yield self._moved(record, FrozenMovedFacts.of(record), names, count)
            return
        explained = _explain_attempt(facts, names, count)
        if explained is not None:
            message, remedy = explained
            yield self.find(
                record,
                message,
                subject=facts.where or names[0],
                where=_locate_attempt(facts, record.rank, names[0]),
                remedies=[remedy],
                tensors=names,
                tensor_count=count,
                kind=facts.kind,
            )

    def _moved(
        self, record: SetupRecord, facts: FrozenMovedFacts, names: list[str], count: int
    ) -> Finding:
        if facts.between_steps:
            return self._written(record, facts, names, count)
        if facts.elements:
            return self._masked(record, facts, names[0])
        kind = facts.optimizer or "the optimizer"
        stale = (facts.gradients or 0) - (facts.zero_gradients or 0)
        by = "an old gradient that was never cleared" if stale > 0 else "momentum or weight decay"
        return self.find(
            record,
            f"a step of {kind} changed {plural(count, 'frozen parameter')} (requires_grad=False) "
            f"through {by}: {say_list(names)}",
            subject=names[0],
            where=facts.locate(rank=record.rank, module=names[0]),
            remedies=[
                "Remove them from the optimizer: create it from the parameters that require a "
                "gradient.",
                "Or clear their gradients when you freeze them: `p.grad = None`.",
            ],
            tensors=names,
            tensor_count=count,
            weight_decay=facts.weight_decay,
            momentum=facts.momentum,
        )

    def _masked(self, record: SetupRecord, facts: FrozenMovedFacts, name: str) -> Finding:
        kind = facts.optimizer or "the optimizer"
        by = "weight decay" if (facts.weight_decay or 0) > 0 else "momentum"
        return self.find(
            record,
            f"the gradients of {plural(facts.elements or 0, 'element')} of {name} are set to 0 "
            f"before each step, but {by} of {kind} still changes these elements",
            subject=name,
            where=facts.locate(rank=record.rank, module=name),
            remedies=[
                f"Put {name} in a parameter group with `weight_decay=0.0`.",
                "Or restore the elements after the step: `weight.data[mask] = before[mask]`.",
            ],
            elements=facts.elements,
            weight_decay=facts.weight_decay,
            momentum=facts.momentum,
        )

    def _written(
        self, record: SetupRecord, facts: FrozenMovedFacts, names: list[str], count: int
    ) -> Finding:
        how = "" if facts.factor is None else f" by a factor of {say(facts.factor, 6)}"
        return self.find(
            record,
            f"this line changes {plural(count, 'frozen parameter')} (requires_grad=False){how} "
            f"between two steps: {say_list(names)}",
            subject=names[0],
            where=facts.locate(rank=record.rank, module=names[0]),
            remedies=[
                "Skip parameters with `requires_grad` False there, or use the optimizer's own "
                "`weight_decay`."
            ],
            tensors=names,
            tensor_count=count,
            factor=facts.factor,
        )


def _locate_attempt(facts: FreezeAttemptFacts, rank: int, first: str) -> Where:
    # The line to change is the one that undoes the freeze.
    if facts.kind == "undone" and facts.undone_at.line is not None:
        return facts.undone_at.where(rank=rank, module=first)
    return facts.locate(rank=rank, module=facts.where or first)


def _explain_attempt(
    facts: FreezeAttemptFacts, names: list[str], count: int
) -> tuple[str, str] | None:
    kind, attribute = facts.kind, facts.attribute or "requires_grad"
    where = facts.where or names[0]
    if kind == "module":
        return (
            f"`{where}.{attribute} = False` sets an attribute of the module and freezes nothing: "
            f"its {count} parameters still require gradients ({say_list(names)})",
            f"Call `{where}.requires_grad_(False)`.",
        )
    if kind == "parameter":
        return (
            f"`.{attribute} = False` on a parameter sets an attribute that torch does not use "
            f"and freezes nothing: {count} parameters still require gradients ({say_list(names)})",
            "Write `parameter.requires_grad = False`.",
        )
    if kind == "undone":
        line, frozen = facts.undone_at.line, facts.locate().line
        at = "" if line is None else f" on line {line}"
        by = "" if frozen is None else f" of line {frozen}"
        return (
            f"{plural(count, 'parameter', WAS)} frozen and unfrozen again{at} before the first "
            f"step: the freeze{by} has no effect ({say_list(names)})",
            "Freeze last, after everything that sets `requires_grad` to True.",
        )
    if kind == "unmatched":
        return (
            f"this freeze has a condition on the name that matches no parameter, so it freezes "
            f"nothing; the names are {say_list(names)}",
            "Print `[name for name, _ in model.named_parameters()]` and fix the condition.",
        )
    if kind == "elsewhere":
        return (
            f"{plural(count, 'parameter', WAS)} frozen on another object than the trained model, "
            f"of which nothing is frozen",
            "Freeze the model that is passed to the optimizer, after it is final.",
        )
    return None
