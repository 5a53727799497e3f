from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.data_facts import WorkerSeedFacts
from headway.core.facts import onset_record, say_list
from headway.core.findings import Finding
from headway.core.records import SetupRecord


class DuplicateWorkerSeed(Check):
    """The workers of a loader draw the same random numbers.

    ## What it checks
    The random states in every worker, after `worker_init_fn`: NumPy's, Python's, torch's, and those
    of generators that the data set stores.

    ## Why it matters
    Each worker then produces the same crops, flips and noise: with eight workers an augmentation is
    used eight times instead of once. No error is raised; the model only generalises worse.

    ## How it is measured
    Two workers start with the same state, and that state has changed after the first batches, so it
    is in use. States are only read, nothing is drawn.

    ## False alarms
    A state that no sample draws from may be the same everywhere. One worker, or none, is not
    judged.

    ## What to do
    Seed from the worker's own seed in `worker_init_fn`: `np.random.seed(torch.initial_seed() %
    2**32)`. Create generators inside the worker (in `worker_init_fn`, or in the first
    `__getitem__`), not in the data set's `__init__`, which is copied into every worker.

    ## References
    pytorch/pytorch#5059; "Randomness in multi-process data loading", torch.utils.data.
    """

    code = "HD508"
    name = "duplicate-worker-seed"
    summary = "workers produce identical randomness"
    needs = Needs(kinds=(SetupRecord,), topics=("worker-seeds",))
    explains = ()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = WorkerSeedFacts.of(record)
        shared, workers = facts.shared, facts.workers or 0
        if not shared or workers < 2:
            return
        yield self.find(
            onset_record(record),
            f"the {workers} workers of a loader start with the same random state of "
            f"{say_list(shared)} and draw from it: their samples get the same random numbers",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Seed each worker from its own seed in `worker_init_fn`: "
                "`np.random.seed(torch.initial_seed() % 2**32)`; create the generators of a data "
                "set there, not in its `__init__`.",
            ],
            shared=shared[:20],
            workers=workers,
        )
