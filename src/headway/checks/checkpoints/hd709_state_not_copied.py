from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.model_facts import WeightsLoadedFacts
from headway.core.records import SetupRecord


class StateNotCopied(Check):
    """A model loads its own tensors: the state that was kept is not a copy.

    ## What it checks
    `load_state_dict` of a module after the training has begun: whether the state holds the very
    tensors of that module.

    ## Why it matters
    `state_dict()` returns references. A "best" state that is kept without a copy follows every
    update, so it is the latest one when it is restored: early stopping returns the overfitted
    model. A target network that loads its own state never changes.

    ## How it is measured
    By memory: every parameter of the module is the tensor that the state has under its name, so the
    call changes nothing. Only after the first optimizer step.

    ## False alarms
    None are known: a load that changes nothing has no use in a training. States from a file, copies
    and states of another module have tensors of their own.

    ## What to do
    Keep `copy.deepcopy(model.state_dict())`, or write the state to a file. For a target network,
    load the state of the trained network.

    ## References
    WenjieDu/PyPOTS#667; thunlp/OpenKE#131; pytorch/tutorials#188; thesouther/MARL#8; PyTorch,
    "Saving and Loading Models".
    """

    code = "HD709"
    name = "state-not-copied"
    severity = Severity.ERROR
    summary = "a model loads its own tensors: the kept state is not a copy"
    needs = Needs(kinds=(SetupRecord,), topics=("weights-loaded",))
    explains = ("HD705",)

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = WeightsLoadedFacts.of(record)
        if not facts.parameters or facts.own != facts.parameters or record.step < 1:
            return
        if facts.after_file:
            return  # HD706
        model = facts.model or "the model"
        loaded = facts.locate(rank=record.rank)
        step = facts.taken_step
        since = f" of step {step}" if step is not None and step < record.step else ""
        yield self.find(
            record,
            f"load_state_dict changes nothing: the state{since} holds the tensors of {model} "
            "itself, which every update changes",
            subject=f"{model} {loaded.line}",
            where=facts.locate(rank=record.rank, place=facts.taken_at) if since else loaded,
            remedies=[
                "Keep a copy: `copy.deepcopy(model.state_dict())`.",
                "For a target network, load the state of the trained network.",
            ],
            parameters=facts.parameters,
            taken_step=facts.taken_step,
            loaded_line=loaded.line,
        )
