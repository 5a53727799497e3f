"""What checks of endings share: the two kinds of memory, and hangs that may still end."""

from __future__ import annotations

import math
import os

from headway.core.check import Check
from headway.core.ending_facts import END, HANG, EndFacts, OutOfMemoryFacts, shape_text
from headway.core.findings import Remedy
from headway.core.hang_facts import HangFacts
from headway.core.numbers import say_bytes
from headway.core.records import EventRecord, Moment


class HangCheck(Check):
    """Base of checks that report a hang when the stream is over, and only if the run did not
    continue."""

    def start(self) -> None:
        self.moment: Moment | None = None
        self.data: dict[str, object] = {}

    def keep(self, record: EventRecord) -> None:
        """Report this event at the end."""
        self.moment = (record.segment, record.seq, record.step, record.rank)
        self.data = dict(record.data)

    def is_over(self, record: EventRecord) -> bool:
        """Whether the event says that the run continued or ended; then nothing is reported of a
        segment that ended well. A hang of an earlier segment remains."""
        if record.kind == END:
            well = EndFacts.of_event(record).status in (None, "finished")
            if well and self.moment is not None and self.moment[0] == record.segment:
                self.moment = None
            return True
        if record.kind == HANG and HangFacts.of_event(record).over:
            self.moment = None
            return True
        return False


_DOING = {
    "data": "data loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "step": "the optimizer step",
    "save": "a save",
}


def say_phase(phase: str | None) -> str:
    """` during the backward pass`; empty for the user's own code."""
    return "" if phase in (None, "user") else f" during {_DOING.get(phase, phase)}"


def describe_batch(facts: OutOfMemoryFacts) -> str:
    """How the batch differs from those before it; empty if it does not."""
    odd = [item for item in facts.batch if item.unusual]
    return f"{odd[0].name} {odd[0].unusual}" if odd else ""


def describe_line(facts: OutOfMemoryFacts) -> str:
    """The largest tensor of the line; empty if there is none."""
    largest = max(facts.tensors, key=lambda item: math.prod(item.shape), default=None)
    return "" if largest is None else f"the line uses {shape_text(largest)}"


def say_holder(facts: OutOfMemoryFacts) -> str:
    """The largest holder of memory: by line where it is known, else by role."""
    if facts.lines:
        top = facts.lines[0]
        place = f"{os.path.basename(str(top.get('file')))}:{top.get('line')}"
        return f"most of it was allocated at {place} ({say_bytes(top.get('bytes', 0))})"
    if facts.holders:
        return "allocated: " + ", ".join(
            f"{item.get('kind')} {say_bytes(item.get('bytes', 0))}" for item in facts.holders[:3]
        )
    return ""


def remedies_of(facts: OutOfMemoryFacts, record: EventRecord) -> list[Remedy | str]:
    """The remedies of the event, those that were tested and helped first."""
    found = [
        Remedy(
            str(item.get("text")),
            tested=bool(item.get("tested")),
            cured=item.get("cured") if item.get("tested") else None,
        )
        for item in facts.remedies
    ]
    found.sort(key=lambda remedy: (not remedy.cured, remedy.tested))
    if facts.phase == "step":
        found.append(
            Remedy("Use an optimizer with smaller states (SGD, Adafactor), or shard them (FSDP).")
        )
    in_model = facts.rows is not None or facts.phase == "backward"
    if in_model and facts.action is None and not any("on_oom" in item.text for item in found):
        found.append(
            Remedy(
                "`Policy(on_oom='split')` runs such a batch in micro-batches with the same "
                "gradient; `'skip'` skips it."
            )
        )
    return list(found)
