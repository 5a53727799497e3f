from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.checks.endings._shared import HangCheck
from headway.core.check import Needs
from headway.core.ending_facts import END, ENDING, HANG, LOADER_FAILED, LoaderFailedFacts
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.hang_facts import WORKER, HangFacts
from headway.core.records import EventRecord, record_at


class LoaderFailed(HangCheck):
    """The data pipeline raised, or one of its workers died or stalled.

    ## What it checks
    Exceptions that leave a torch DataLoader: from the data set, the sampler or `collate_fn`, in the
    main process or in a worker; a worker that was killed; a batch that did not arrive
    within `timeout`, or for which a run without a timeout waits forever.

    ## Why it matters
    One unreadable sample ends a run of days. The exception of a worker arrives as text inside
    another exception, and does not say which sample it was.

    ## How it is measured
    From the exception: the line of the data set is read from the worker's own traceback. The index
    of the sample is read from the frames, or found by loading the samples of that batch one by one
    (at most 1024, at most 10 seconds). A run that hangs (HD914) in the loader waits for a worker.

    ## False alarms
    Exceptions that the script catches around its loader are not reported.

    ## What to do
    Fix or remove the named sample; `Policy(on_bad_sample="skip")` skips such samples. A worker
    that was killed: enlarge `/dev/shm` (`docker run --shm-size=8g`), use fewer workers, or look for
    a memory leak in the data set. A worker that stalls: raise `timeout`, and look for locks and
    network storage in the data set.

    ## References
    PyTorch, "torch.utils.data"; PyTorch issue 8976, "DataLoader worker exited unexpectedly".
    """

    code = "HD514"
    name = "loader-failed"
    severity = Severity.ERROR
    summary = "the data pipeline raised, or a worker died or stalled"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(LOADER_FAILED, HANG, END))
    explains = ("HD914", "HD608")
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if self.is_over(record):
            return
        if record.kind == HANG:
            self._note_hang(record)
            return
        self.moment = None  # the loader gave up by itself
        facts = LoaderFailedFacts.of_event(record)
        yield self.find(
            record,
            _message(facts),
            subject=f"{facts.how} {facts.sample if facts.sample is not None else facts.error_type}",
            where=facts.where(record.rank),
            severity=Severity.WARNING if facts.survived else None,
            remedies=_remedies(facts),
            how=facts.how,
            worker=facts.worker,
            indices=facts.indices or None,
            **facts.evidence(),
        )

    def _note_hang(self, record: EventRecord) -> None:
        culprit = HangFacts.of_event(record).culprit
        if culprit is not None and culprit.within == WORKER:
            self.keep(record)

    def finish(self) -> Iterable[Finding]:
        if self.moment is None:
            return
        facts = HangFacts.read(self.data)
        culprit = facts.culprit
        where = culprit.place.where() if culprit is not None else Where()
        several = culprit is not None and len(facts.ranks) > 1
        rank = culprit.number if culprit is not None and several else None
        yield self.find(
            record_at(self.moment),
            f"no batch arrived from the DataLoader workers for {facts.idle_s or 0:.0f} s; one of "
            "them is stuck",
            subject="stalled",
            where=Where(where.file, where.line, where.function, rank=rank),
            remedies=[
                "Pass `timeout=60` to the DataLoader to get an error instead, and try "
                "`num_workers=0`.",
                "Look for locks, network storage and threads that were started before the workers.",
            ],
            how="stalled",
            idle_s=facts.idle_s,
            usual_s=facts.usual_s,
        )


def _message(facts: LoaderFailedFacts) -> str:
    if facts.how == "died":
        by = f" by signal {facts.worker_signal}" if facts.worker_signal else ""
        return f"a DataLoader worker {'was killed' if by else 'exited unexpectedly'}{by}"
    if facts.how == "stalled":
        return f"no batch arrived within the DataLoader's timeout: {facts.error}"
    sample = "the data pipeline" if facts.sample is None else f"loading sample {facts.sample}"
    worker = "" if facts.worker is None else f" in worker {facts.worker}"
    tail = "; the sample is skipped" if facts.survived else ""
    return f"{sample} raised{worker}: {facts.error}{tail}"


def _range(indices: Sequence[float]) -> str:
    """`indices 192 to 207`, or the first few."""
    first, last = int(min(indices)), int(max(indices))
    if last - first == len(indices) - 1:
        return f"indices {first} to {last}"
    return f"indices {say_list([int(index) for index in indices], 4)}"


def _remedies(facts: LoaderFailedFacts) -> list[str]:
    found = []
    if facts.how == "died" or facts.shared_memory:
        found.append(
            "Enlarge shared memory (`docker run --shm-size=8g`), or use fewer workers "
            "(`num_workers`)."
        )
    if facts.how == "died":
        found.append("Run once with `num_workers=0`: the error is then raised in the main process.")
    elif facts.how == "stalled":
        found.append("Raise `timeout`, and look for locks or slow storage in the data set.")
    elif facts.sample is not None and not facts.survived:
        found.append(f"Fix or remove sample {facts.sample} of the data set.")
        found.append('`Policy(on_bad_sample="skip")` skips samples that cannot be loaded.')
    elif facts.indices and not facts.survived:
        found.append(
            f"Compare the samples of this batch with what the line expects: {_range(facts.indices)}"
            " of the data set."
        )
    return found
