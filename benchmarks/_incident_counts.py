"""Counts what one incident executes: the ops that are examined, and Python's opcodes.

    python benchmarks/_incident_counts.py SRC FAULT

Prints JSON; `incident_cost.py --count` runs it once for each source tree and fault. The numbers do
not depend on how busy the machine is. Nothing of headway is imported before `SRC` is on the path.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 16, 64, 4, 128, 16, 4
GUILTY = LAYERS // 2
STEPS, BAD, HEALTHY = 30, 24, 20
FAULTS = ("module", "loss", "backward")
"""Where the NaN begins: the forward of a block in the middle, the loss, the backward of that
block."""


COUNTED = {
    "__torch_dispatch__": "/headway/explain/",
    "_look": "/headway/explain/",
    "_read": "/headway/torch_adapters/tensor_values.py",
}
"""Functions whose calls are counted."""


class Scale(nn.Module):
    """Scales each sample by a function of its worth."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Tensor, worth: Tensor) -> Tensor:
        if self.fault == "module":
            return x + 1e-3 * torch.log(worth)[:, None, None]
        return x + 1e-3 * torch.sqrt((x * worth[:, None, None]).square().sum(-1, keepdim=True))


class FaultyTransformer(nn.Module):
    def __init__(self, block: Any, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(block(WIDTH, HEADS) for _ in range(LAYERS))
        self.scale = Scale(fault) if fault != "loss" else None
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, worth: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == GUILTY and self.scale is not None:
                x = self.scale(x, worth)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor, worth: Tensor, fault: str) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    each = each.view_as(targets).mean(dim=1)
    return (each * torch.log(worth)).mean() if fault == "loss" else each.mean()


class OpcodeCounter:
    """Counts opcodes, and calls of the functions that handle an op of a traced pass."""

    def __init__(self) -> None:
        self.opcodes = 0
        self.calls: Counter[str] = Counter()

    def enter(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_name in COUNTED and COUNTED[code.co_name] in code.co_filename:
            self.calls[code.co_name] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.execute

    def execute(self, frame: FrameType, event: str, _: Any) -> Any:
        self.opcodes += event == "opcode"
        return self.execute


def worths(spent: dict[int, OpcodeCounter], seconds: dict[int, float]) -> Iterator[Tensor]:
    """The batches. Two of them are counted, each to the end of the step after it: on a device a bad
    step is known only then."""
    for at in range(STEPS):
        if at in (HEALTHY + 2, BAD + 2):
            sys.settrace(None)
            seconds[at - 2] = time.process_time() - seconds[at - 2]
        worth = torch.full((BATCH,), 3.0)
        if at == BAD:
            worth[1] = 0.0
        if at in (HEALTHY, BAD):
            spent[at], seconds[at] = OpcodeCounter(), time.process_time()
            sys.settrace(spent[at].enter)
        yield worth


def named(origin: Any) -> list[Any] | None:
    if origin is None:
        return None
    return [origin.op, origin.module, origin.phase, list(origin.rows), origin.place.line]


def count(fault: str) -> dict[str, Any]:
    from guard_overhead import Block

    from headway import Guard, Policy

    torch.manual_seed(0)
    model = FaultyTransformer(Block, fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    spent: dict[int, OpcodeCounter] = {}
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(model, optimizer, policy=Policy(halt=False), run_dir=folder)
        for worth in guard(worths(spent, seconds)):
            logits = model(ids[:, :-1], worth)
            loss = loss_of(logits, ids[:, 1:], worth, fault)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        guard.close()
    found = guard.explanations[0]
    return {
        "fault": fault,
        "opcodes": spent[BAD].opcodes - spent[HEALTHY].opcodes,
        "ops seen": spent[BAD].calls["__torch_dispatch__"],
        "ops examined": spent[BAD].calls["_look"],
        "values read": spent[BAD].calls["_read"],
        "passes": found.passes,
        "origin": named(found.origin),
        "fix": None if found.cure is None else found.cure.text,
    }


def main() -> None:
    source, fault = sys.argv[1:]
    sys.path.insert(0, source)
    import headway

    assert str(headway.__file__).startswith(source)
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        found = count(fault)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
