from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import MovingTargetFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord


class MovingTarget(Check):
    """The target of a temporal-difference loss is trained along with the prediction.

    ## What it checks
    Regression losses (`mse_loss`, `smooth_l1_loss`, `huber_loss`, a squared difference) whose
    target is bootstrapped, reward + gamma · value: whether gradients flow into the target and reach
    the same trained parameters as the prediction. Also whether a target network is the trained
    network itself under a second name.

    ## Why it matters
    The loss can be made small by moving the target towards the prediction. Values no longer follow
    the rewards: learning is slow, biased or diverges, while the loss looks good.

    ## How it is measured
    From the graph of the loss: both sides have gradients, one of them is a sum of a constant (the
    reward) and a value times a constant between 0.5 and 1 (the discount), and both reach a
    parameter that an optimizer holds. For a target network: one module is called at least twice
    before a step with a regression loss, and the variables or attributes of the script hold it
    under two names, one of them with "target" in it.

    ## False alarms
    A target that is detached, computed under `no_grad` or from a network that no optimizer holds is
    not reported. Neither are losses that compare two outputs without a reward and a discount (
    siamese networks, consistency losses, cycle losses). Residual-gradient methods do this on
    purpose; ignore the code there.

    ## What to do
    Compute the target under `torch.no_grad()`, or call `.detach()` on it; with a target network,
    make it a copy (`copy.deepcopy(policy)`), not a second name for the same network.

    ## References
    datawhalechina/easy-rl#117 and #140, andri27-ts/Reinforcement-Learning#14; Mnih et al.,
    "Human-level control through deep reinforcement learning".
    """

    code = "HD121"
    name = "moving-target"
    severity = Severity.ERROR
    summary = "the target of a TD loss is trained along with the prediction"
    needs = Needs(kinds=(SetupRecord,), topics=("moving-target",))
    explains = ("HD103", "HD104", "HD105", "HD115", "HD202", "HD207", "HD512")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = MovingTargetFacts.of(record)
        if len(facts.names) == 2:
            yield self._same_network(record, facts)
        count, factor = facts.shared_count or 0, facts.factor
        if not count or factor is None:
            return
        yield self.find(
            record,
            f"the bootstrapped target (reward + {say(factor)} · value) is not detached: the loss "
            f"also moves it through {count} parameters that the prediction depends on "
            f"({say_list(facts.shared, 2)})",
            where=facts.locate(rank=record.rank, op=facts.function),
            remedies=["Compute the target under `torch.no_grad()`, or detach it."],
            shared=facts.shared,
            shared_count=count,
            factor=factor,
        )

    def _same_network(self, record: SetupRecord, facts: MovingTargetFacts) -> Finding:
        target, trained = facts.names
        return self.find(
            record,
            f"{target} and {trained} are the same network: every update also moves the targets "
            f"that it is trained on",
            where=facts.locate(rank=record.rank),
            remedies=[f"Make {target} a copy: copy.deepcopy({trained})."],
            names=facts.names,
        )
