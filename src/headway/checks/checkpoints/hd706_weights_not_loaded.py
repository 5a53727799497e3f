from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding
from headway.core.model_facts import WeightsLoadedFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord


class WeightsNotLoaded(Check):
    """A state was loaded, but the model still has its random initial weights.

    ## What it checks
    Every `load_state_dict`: which of the model's parameters are in the state, and which of the
    state's entries are in the model; and whether the loaded values are still there when training
    starts.

    ## Why it matters
    `strict=False` silently drops what does not fit. With a prefix (`module.`, `model.`) nothing
    fits, and the "pretrained" model trains from scratch. So does one that is initialised again
    after loading.

    ## How it is measured
    By elements: at least half of the model is missing in the state and at least half of the state
    is unknown to the model; or a tenth, if a prefix would make the names fit. For loaded weights,
    the share that is overwritten before the next backward pass: more than half. A loaded table that
    was replaced by one of up to 1.5 times its rows: whether half of its rows are still in the
    model.

    ## False alarms
    A new head for another task, a body loaded into a larger model (all of the state is used), and a
    part of a larger checkpoint (all of the model is found) pass.

    ## What to do
    Print the result of `load_state_dict`; strip or add the prefix; load last, after initialising.

    ## References
    pytorch/pytorch#141256; huggingface/transformers#17877.
    """

    code = "HD706"
    name = "weights-not-loaded"
    summary = "keys missing or unexpected: the module still has its random initial weights"
    needs = Needs(kinds=(SetupRecord,), topics=("weights-loaded",))
    explains = (*POOR_FIT, "HD105", "HD113", "HD404", "HD409")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.5
        """Share of the model's elements that are missing, and of the state's that are unknown."""
        prefix_share: float = 0.1
        """The same, if a prefix explains it."""
        overwritten: float = 0.5
        """Share of the loaded elements."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = WeightsLoadedFacts.of(record)
        if facts.replaced:
            yield self._replaced(record, facts, facts.replaced)
            return
        loaded = facts.loaded_elements
        if loaded:
            lost = (facts.overwritten_elements or 0.0) / loaded
            if lost > self.limits.overwritten:
                yield self._overwritten(record, facts, lost)
            return
        elements, given = facts.elements, facts.given_elements
        if not elements:
            return
        own = (facts.own_elements or 0.0) / elements
        if own >= self.limits.share and facts.after_file:
            yield self._own(record, facts, own)
            return
        missing = (facts.missing_elements or 0.0) / elements
        unknown = (facts.unexpected_elements or 0.0) / given if given else 1.0
        prefix = facts.prefix
        limit = self.limits.share if prefix is None else self.limits.prefix_share
        if missing >= limit and unknown >= limit:
            yield self._not_loaded(record, facts, missing, limit)

    def _not_loaded(
        self, record: SetupRecord, facts: WeightsLoadedFacts, missing: float, limit: float
    ) -> Finding:
        names, strange = facts.missing, facts.unexpected
        prefix, on = facts.prefix, facts.prefix_on
        remedies = ["Print the result of `load_state_dict`, and load with `strict=True`."]
        because = f" (the state has {say_list(strange, 2)} instead)" if strange else ""
        if prefix is not None and on == "state":
            because = f": the names in the state start with '{prefix}'"
            remedies.insert(0, f"Strip '{prefix}' from the keys of the state before loading it.")
        elif prefix is not None:
            because = f": the names in the model start with '{prefix}', those in the state do not"
            remedies.insert(0, f"Load it into the inner module, or add '{prefix}' to its keys.")
        model = facts.model or "the model"
        return self.find(
            record,
            f"{say(100 * missing)} % of {model} ({facts.missing_count or len(names)} "
            f"parameters) is not in the loaded state and keeps its random initial values: "
            f"{say_list(names, 2)}{because}",
            subject=f"{model} {names[:1]}",
            where=facts.locate(rank=record.rank, module=names[0] if names else None),
            remedies=remedies,
            share=missing,
            limit=limit,
            missing=names,
            unexpected=strange,
            prefix=prefix,
        )

    def _replaced(self, record: SetupRecord, facts: WeightsLoadedFacts, name: str) -> Finding:
        line = facts.loaded_at.line
        at = "" if line is None else f" on line {line}"
        return self.find(
            record,
            f"{name} was loaded{at} with {facts.rows} rows and then replaced by one of "
            f"{facts.rows_now} rows that contains none of them: it trains from random values",
            subject=name,
            where=facts.locate(rank=record.rank, module=name),
            remedies=["Copy the loaded rows into the larger tensor before you replace it."],
            rows=facts.rows,
            rows_now=facts.rows_now,
        )

    def _own(self, record: SetupRecord, facts: WeightsLoadedFacts, own: float) -> Finding:
        model = facts.model or "the model"
        return self.find(
            record,
            f"{say(100 * own)} % of the state loaded into {model} are the model's own tensors: no "
            f"name in the file matches",
            subject=f"{model} own",
            where=facts.locate(rank=record.rank),
            remedies=["Compare the names in the file with those of `model.state_dict()`."],
            share=own,
            limit=self.limits.share,
        )

    def _overwritten(self, record: SetupRecord, facts: WeightsLoadedFacts, lost: float) -> Finding:
        names = facts.overwritten
        return self.find(
            record,
            f"{say(100 * lost)} % of the loaded weights were overwritten before training "
            f"started: {say_list(names)}",
            subject="overwritten",
            where=facts.locate(rank=record.rank, module=names[0] if names else None),
            remedies=["Initialise the weights first, then load the state."],
            share=lost,
            limit=self.limits.overwritten,
            tensors=names,
        )
