from __future__ import annotations

import re
from collections.abc import Iterable

from headway.checks.checkpoint_tensors import CHECKPOINT, SavedCheckpoint
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.model_facts import TiedWeightsFacts
from headway.core.records import EventRecord, Header, SetupRecord, TensorRecord, record_at

_OUTPUT = re.compile(
    r"(^|\.)(lm_head|embed_out|output_projection|predictions\.decoder|generator_lm_head|output)"
    r"\.weight$"
)
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|shared|embed_in|token_embedding)"
    r"\.weight$"
)


class UntiedWeights(Check):
    """An embedding and an output layer that should be one tensor are two.

    ## What it checks
    Embeddings and matrices of the same shape in one model: whether two trained tensors start with
    exactly the same values, whether a configuration requires them to be tied, and whether they were
    one parameter before one of them was replaced. In a checkpoint:
    an embedding and an output layer, both saved, if the configuration next to it ties them.

    ## Why it matters
    A copy is equal only at the start. From the first step on the two diverge: the model has more
    parameters than it reports, and exporting or sharding it as tied loses one of them.

    ## How it is measured
    Before the first update, bitwise, except rows of one constant; and from
    `config.tie_word_embeddings` if the model has such a configuration. Saved weights are compared
    by their bytes if the configuration states explicitly that they are tied.

    ## False alarms
    Weights that are one object are tied. Copies that do not train (an EMA, a target network), two
    separate models and layers of one kind (a stack created by copying) are not compared.

    ## What to do
    Assign the parameter itself: `head.weight = embedding.weight`, after anything that creates new
    parameters; do not use `.clone()`, `.data.copy_()` or `deepcopy`.

    ## References
    NVIDIA/Megatron-LM#656; Press and Wolf, "Using the output embedding to improve language models".
    """

    code = "HD707"
    name = "untied-weights"
    summary = "tensors that should be shared differ"
    needs = Needs(
        kinds=(SetupRecord, TensorRecord, EventRecord),
        topics=("tied-weights",),
        roles=("weight",),
        events=(CHECKPOINT,),
        checkpoints=1,
    )
    explains = ("HD204", "HD306")

    def start(self) -> None:
        self.now: SavedCheckpoint | None = None

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: SetupRecord | TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.now = SavedCheckpoint.of(record)
        elif isinstance(record, TensorRecord):
            if self.now is not None and self.now.tied and not record.nonfinite:
                self.now.add(record)
        else:
            yield from self._at_setup(record)

    def finish(self) -> Iterable[Finding]:
        if self.now is not None and self.now.tied:
            yield from self._saved(self.now)
        self.now = None

    def _saved(self, saved: SavedCheckpoint) -> Iterable[Finding]:
        heads = [name for name in saved.weights if _OUTPUT.search(name)]
        tables = [name for name in saved.weights if _EMBEDDING.search(name)]
        if len(heads) != 1 or len(tables) != 1:
            return  # with several of them it is unknown which belong together
        [head], [table] = heads, tables
        one, other = saved.weights[head], saved.weights[table]
        if not one[0] or not other[0] or one[2:] != other[2:] or one[0] == other[0]:
            return
        yield self.find(
            record_at(saved.moment),
            f"{saved.name}: the config ties {table} and {head}, but they were saved with "
            f"different values: loading by the config loses one of them",
            subject=saved.path,
            where=Where(file=saved.path, module=head),
            remedies=[
                "If the head was trained separately, set `tie_word_embeddings` to false in "
                "config.json; otherwise tie it before training and save again.",
            ],
            path=saved.path,
            tensors=[table, head],
        )

    def _at_setup(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TiedWeightsFacts.of(record)
        copies, asked = facts.copies, facts.asked
        first, second = facts.embedding, facts.output
        if not (copies or asked or facts.parted) or first is None or second is None:
            return
        how = "start with the same values" if copies else "are tied by the config"
        if facts.parted:
            how = "were tied until one of them was replaced,"
        shape = " x ".join(str(int(size)) for size in facts.shape)
        yield self.find(
            record,
            f"{first} and {second} ({shape}) {how} but are two separate tensors: they diverge "
            f"from the first update on",
            subject=f"{first} {second}",
            where=facts.locate(rank=record.rank, module=second),
            remedies=[
                f"Assign the parameter itself (`{second} = {first}`), after everything that "
                f"creates new parameters; do not clone or copy it.",
            ],
            tensors=[first, second],
            copies=copies,
        )
