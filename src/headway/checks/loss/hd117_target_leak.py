from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import FutureDependenceFacts, LabelCopyFacts, SharedRowsFacts
from headway.core.findings import Finding, Severity
from headway.core.records import SetupRecord


class TargetLeak(Check):
    """The model's input contains the answer that it is trained to predict.

    ## What it checks
    Three kinds of leaks: a language model that sees the tokens it must predict, an input column
    that is the label, and training rows among the validation rows.

    ## Why it matters
    The loss falls fast and far and validation looks excellent, but the model is useless where the
    answer is not part of the input.

    ## How it is measured
    If the targets are the inputs shifted by one position, a copy of the model is run with other
    tokens after a position: its output up to that position must not change. Each input column is
    correlated with the label over at least 64 samples. In tables, a column was filled in after the
    outcome was known if the gap between its classes is wider than the classes, or if one class has
    a single value that no other class has, while the classes overlap in nearly all other columns.
    Rows are compared by a hash of their content, once nearly all training rows have been seen.

    ## False alarms
    Encoders that fill gaps, the encoder of a translator and the prefix of a prefix model may look
    ahead. A single column may be the label up to a factor (a first exercise). Validating on all of
    the training data is intended; on a part of it is an accident, also where that part is all that
    is ever validated on: a `Subset` of the data set that the training loader takes as a whole. Data
    with few distinct rows share them by chance and are not judged.

    ## What to do
    Use a causal mask in the attention (`is_causal=True`, or a mask that is −inf above the diagonal)
    and no bidirectional layer. Remove the column from the features. Split by row before anything is
    duplicated, augmented or shuffled together.

    ## References
    huggingface/transformers#31673 (a causal mask that was lost); Kaufman et al., "Leakage in Data
    Mining".
    """

    code = "HD117"
    name = "target-leak"
    severity = Severity.WARNING
    summary = "the input contains the answer"
    needs = Needs(kinds=(SetupRecord,), topics=("future-dependence", "label-copy", "shared-rows"))
    explains = ()
    once = "segment"

    @dataclass(frozen=True)
    class Limits:
        likeness: float = 0.999
        """Correlation with the label above which a column is a copy of it."""
        exact: float = 1.0 - 1e-9
        """The same for a numeric label, which a neighbour in time may be close to."""
        related: float = 0.3
        """Correlation of a numeric label with another column; otherwise that one column is the
        task."""
        fewest: int = 64
        """Smallest number of samples."""
        others: int = 4
        """Columns in which the classes must overlap; otherwise every column separates them."""
        given_away: int = 4
        """Largest number of columns that reveal the label; with more, the task is just easy."""
        others_apart: float = 2.0
        """Largest distance of the class means in any other column, in standard deviations."""
        least_shared: float = 0.02
        most_shared: float = 0.8
        """Shares of the validation rows: below, chance; above, validation on the training data,
        unless they are a part of a data set that is trained on as a whole."""
        covered: float = 0.9
        """Share of the last training rows that must have been seen before."""
        alike: float = 0.02
        """Share of duplicate rows within a batch above which equal rows mean nothing."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic == FutureDependenceFacts.topic:
            finding = self._future(record, FutureDependenceFacts.of(record))
        elif record.topic == LabelCopyFacts.topic:
            finding = self._copy(record, LabelCopyFacts.of(record))
        else:
            finding = self._shared(record, SharedRowsFacts.of(record))
        if finding is not None:
            yield finding

    def _future(self, record: SetupRecord, facts: FutureDependenceFacts) -> Finding | None:
        if not facts.leaks:
            return None
        module, op = facts.module, facts.op
        return self.find(
            record,
            f"{module or 'the model'} sees the tokens it must predict: its outputs change with "
            f"later tokens, and the targets are the inputs shifted by one position"
            + (f"; {op} is the first op that looks ahead" if op else ""),
            subject="future",
            where=facts.locate(module=module, op=op),
            remedies=[
                "Use a causal mask in the attention: `is_causal=True`, or a mask that is −inf "
                "above the diagonal; a recurrent layer must not be bidirectional."
            ],
            ratio=facts.ratio,
        )

    def _copy(self, record: SetupRecord, facts: LabelCopyFacts) -> Finding | None:
        likeness, samples = facts.likeness, facts.samples
        columns, column = facts.columns, facts.column
        if likeness is None or samples is None or samples < self.limits.fewest:
            return None
        one_hot = facts.one_hot
        classes = facts.classes
        limit = self.limits.exact if classes is None else self.limits.likeness
        if (likeness <= limit and not one_hot) or (columns or 0) < 2:
            return self._revealing_column(record, facts, samples)
        if classes is None and (facts.next or 0.0) < self.limits.related:
            # No other column is related to the target: the task is to find that column.
            return None
        what = (
            f"columns {', '.join(str(int(item)) for item in one_hot[:5])} of the inputs mark the "
            "classes"
            if one_hot and likeness <= limit
            else f"column {column} of the inputs is the label (correlation {likeness:.4f})"
        )
        return self.find(
            record,
            f"{what}, over {samples} samples",
            subject="column",
            where=facts.locate(),
            remedies=[
                f"Remove column {column} from the features, and look for others derived from the "
                f"label."
            ],
            column=column,
            correlation=likeness,
            samples=samples,
        )

    def _revealing_column(
        self, record: SetupRecord, facts: LabelCopyFacts, samples: int
    ) -> Finding | None:
        best, others = facts.marked_best, facts.overlapping or 0
        count = facts.marked_count or 0
        if best is None or count < 1:
            return None
        if others < self.limits.others or count > self.limits.given_away:
            return None
        distance, constant = facts.others_apart, facts.marked_constant
        if not constant and (distance is None or distance > self.limits.others_apart):
            return None
        listed = [str(int(item)) for item in facts.marked[:5]]
        why = (
            "one class always has the same value there, which no other class has"
            if constant
            else "the gap between the classes there is wider than the classes"
        )
        subject = (
            "columns {} of the inputs reveal"
            if len(listed) > 1
            else "column {} of the inputs reveals"
        )
        return self.find(
            record,
            f"{subject.format(', '.join(listed))} the label: {why}, over {samples} samples; the "
            f"other {others} columns do not",
            subject="column",
            where=facts.locate(),
            remedies=[
                f"Check whether column {best} is known before the outcome is; if not, remove it "
                f"from the features, and look for others that were filled in afterwards."
            ],
            column=best,
            columns=[int(item) for item in facts.marked],
            samples=samples,
        )

    def _shared(self, record: SetupRecord, facts: SharedRowsFacts) -> Finding | None:
        validated, shared = facts.validated, facts.shared
        covered, alike = facts.covered, facts.alike
        if not validated or shared is None or covered is None or alike is None:
            return None
        share = shared / validated
        few = shared < 3 or share < self.limits.least_shared
        if few or (share > self.limits.most_shared and not facts.inside):
            return None
        if covered < self.limits.covered or alike > self.limits.alike:
            return None
        return self.find(
            record,
            f"{shared:.0f} of {validated:.0f} validation rows are training rows",
            subject="rows",
            where=facts.locate(module=facts.module),
            remedies=[
                "Split the rows before they are duplicated, augmented or resampled, and remove "
                "duplicates first."
            ],
            share=share,
        )
