from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.ending_facts import ENDING, SAVE_FAILED, SaveFailedFacts
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord

RENAME = (
    "Write to a temporary name and rename it, so that a failed save leaves the last checkpoint "
    "intact."
)
FIRST = {  # words of the reason, and what to do
    "full": "Free disk space, or delete older checkpoints as new ones are saved.",
    "quota": "Delete older checkpoints, or save to a file system without this quota.",
    "permission": "Save to a folder that this user may write to.",
    "read-only": "Save to another file system: this one is mounted read-only.",
    "size limit": "Raise the limit of the file size (`ulimit -f`), or save in several files.",
    "a folder has this name": "Save under another name, or remove the folder of this name.",
    "a folder with files": "Save under another name, or remove the folder of this name.",
    "is a file, not a folder": "Save below a folder: a part of this path is a file.",
    "another file system": "Write the temporary file into the folder of the checkpoint, so that it "
    "can be renamed.",
    "too many files": "Close files that are no longer needed, or raise the limit (`ulimit -n`).",
    "does not exist": "Create the folder first: `os.makedirs(folder, exist_ok=True)`.",
    "pickled": "Save `state_dict()` and plain values rather than the object itself: lambdas, local "
    "functions, locks and open files cannot be pickled.",
}


class CheckpointNotSaved(Check):
    """A checkpoint could not be saved.

    ## What it checks
    `torch.save`, safetensors and `torch.distributed.checkpoint` that raise while they write: a full
    disk, a quota, missing permission, a folder that does not exist, an object that cannot be
    pickled.

    ## Why it matters
    The run ends, or, if the script catches the exception, continues without a checkpoint to return
    to. A failed save often leaves a torn file under the name of the checkpoint.

    ## How it is measured
    The guard sees every `torch.save`: the path of the last one that succeeded, and the exception of
    one that did not; under `headway run` also at exit, in `atexit` callbacks. Exceptions that end
    the run are recognised by their frames.

    ## False alarms
    A save that succeeds at the second try or elsewhere is not reported, and neither is a
    caught error about an object that cannot be pickled. An exception while the state is collected
    is a crash (HD911).

    ## What to do
    Free space or save elsewhere; remove the torn file. Write to a temporary name and rename it when
    it is complete, so that a failed save never replaces a good checkpoint. `headway scan` shows
    which checkpoints are intact.

    ## References
    PyTorch, "Saving and Loading Models".
    """

    code = "HD708"
    name = "checkpoint-not-saved"
    severity = Severity.ERROR
    summary = "a checkpoint could not be saved"
    needs = Needs(signals=(ENDING,), kinds=(EventRecord,), events=(SAVE_FAILED,))
    explains = ()
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = SaveFailedFacts.of_event(record)
        what = f"{facts.path} could not be saved" if facts.path else "a checkpoint was not saved"
        why = facts.reason or facts.error or "unknown error"
        good = "no earlier checkpoint of this run is known"
        if facts.last_good is not None:
            good = f"the last good one is {facts.last_good}, after {facts.last_good_steps} steps"
        yield self.find(
            record,
            f"{what}: {why}; {good}",
            subject=facts.path or "",
            where=facts.where(record.rank),
            remedies=[*_remedies(facts), RENAME],
            path=facts.path,
            last_good=facts.last_good,
            **facts.evidence(),
        )


def _remedies(facts: SaveFailedFacts) -> list[str]:
    known = [text for words, text in FIRST.items() if words in (facts.reason or "")]
    return known or ["Free disk space, or save to an existing, writable folder."]
