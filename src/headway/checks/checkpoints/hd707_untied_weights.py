from __future__ import annotations

import re
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.checkpoint_tensors import CHECKPOINT, Saved
from headway.core.findings import Finding, Where
from headway.core.optimizer_facts import TiedWeightsFacts
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
    """An embedding and an output layer that are meant to be one tensor are two.

    ## What it checks
    Embeddings and matrices of the same shape in one model: whether two trained tensors begin with
    the very same numbers, and whether a configuration asks for them to be tied. In a checkpoint:
    an embedding and an output layer, both saved, where the configuration beside it ties them.

    ## Why it matters
    A copy is equal at the start only. From the first step on the two go apart: the model has more
    parameters than it says, and exporting or sharding it by the tie loses one of them.

    ## How it is measured
    Before the first update, bit by bit, rows that are all the same number left out; and by
    `config.tie_word_embeddings` where the model has such a configuration. Saved ones are compared
    by their bytes, if the configuration says in so many words that they are tied.

    ## False alarms
    Weights that are one object are tied. Copies that do not train (an EMA, a target network), two
    separate models and layers of one kind (a stack made by copying) are not compared.

    ## What to do
    Assign the parameter itself: `head.weight = embedding.weight`, after anything that makes new
    parameters; no `.clone()`, `.data.copy_()` or `deepcopy` of it.

    ## References
    NVIDIA/Megatron-LM#656; Press and Wolf, "Using the output embedding to improve language models".
    """

    code = "HD707"
    name = "untied-weights"
    summary = "tensors meant to be shared differ"
    needs = Needs(
        kinds=(SetupRecord, TensorRecord, EventRecord),
        topics=("tied-weights",),
        roles=("weight",),
        events=(CHECKPOINT,),
        checkpoints=1,
    )
    explains = ("HD204", "HD306")

    def start(self) -> None:
        self.now: Saved | None = None

    def begin(self, header: Header) -> None:
        self.start()

    def observe(self, record: SetupRecord | TensorRecord | EventRecord) -> Iterable[Finding]:
        if isinstance(record, EventRecord):
            yield from self.finish()
            self.now = Saved.of(record)
        elif isinstance(record, TensorRecord):
            if self.now is not None and self.now.tied and not record.nonfinite:
                self.now.add(record)
        else:
            yield from self._at_setup(record)

    def finish(self) -> Iterable[Finding]:
        if self.now is not None and self.now.tied:
            yield from self._saved(self.now)
        self.now = None

    def _saved(self, saved: Saved) -> Iterable[Finding]:
        heads = [name for name in saved.weights if _OUTPUT.search(name)]
        tables = [name for name in saved.weights if _EMBEDDING.search(name)]
        if len(heads) != 1 or len(tables) != 1:
            return  # with several of them nobody says which belong together
        [head], [table] = heads, tables
        one, other = saved.weights[head], saved.weights[table]
        if not one[0] or not other[0] or one[2:] != other[2:] or one[0] == other[0]:
            return
        yield self.find(
            record_at(saved.moment),
            f"{saved.name}: {table} and {head} are meant to be tied by the config, and were saved "
            "with different numbers: whoever loads it by the config loses one of them",
            subject=saved.path,
            where=Where(file=saved.path, module=head),
            remedies=[
                "If the head was trained by itself, set `tie_word_embeddings` to false in "
                "config.json; else tie it before training and save again.",
            ],
            path=saved.path,
            tensors=[table, head],
        )

    def _at_setup(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TiedWeightsFacts.of(record)
        copies, asked = facts.copies, facts.asked
        first, second = facts.embedding, facts.output
        if not (copies or asked) or first is None or second is None:
            return
        how = "begin with the same numbers" if copies else "are meant to be tied by the config"
        shape = " x ".join(str(int(size)) for size in facts.shape)
        yield self.find(
            record,
            f"{first} and {second} ({shape}) {how} but are two trained tensors: they go apart from "
            "the first update on",
            subject=f"{first} {second}",
            where=facts.locate(rank=record.rank, module=second),
            remedies=[
                f"Assign the parameter itself (`{second} = {first}`), after everything that makes "
                "new parameters; do not clone or copy it.",
            ],
            tensors=[first, second],
            copies=copies,
        )
