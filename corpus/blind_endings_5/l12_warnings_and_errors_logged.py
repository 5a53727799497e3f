"""The log is full of warnings, printed tracebacks and the words of disasters; nothing is wrong."""

import logging
import traceback
import warnings

import torch
from torch import nn

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("run")


def optional(name):
    try:
        __import__(name)
    except ImportError:
        log.exception("optional package %s", name)


optional("apex_of_the_site")
torch.manual_seed(0)
model = nn.Linear(7, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    x = torch.randn(28, 7)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        warnings.warn(f"CUDA out of memory would be possible at step {step}", stacklevel=1)
        log.error("Killed: Segmentation fault (core dumped) of the previous run is in the log")
        try:
            raise MemoryError("a simulated one")
        except MemoryError:
            traceback.print_exc()
