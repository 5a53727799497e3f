"""A step on several ranks, traced on each: one of them makes what all of them get."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from headway.explain import locate
from headway.explain.failing_step import FailingStep
from headway.explain.trace import Trace
from headway.torch_adapters.module_stack import user_path


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.sqrt((self.first(x) * x[:, :1]).square())
        return self.second(lengths)


def traced_on(rank: int, how: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """(bad gradients, origins) of a rank; rank 1 has a sample of zeros."""
    torch.manual_seed(0)
    net: nn.Module = Net()
    if how == "ddp":
        net = DistributedDataParallel(net)
    else:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(net.first, mesh=mesh)
        fully_shard(net, mesh=mesh)
    x = torch.rand(6, 4) + 0.5
    if rank == 1:
        x[3] = 0
    names = {id(p): user_path(name) for name, p in net.named_parameters()}
    scene = FailingStep([net], [], [x], names)
    with Trace(scene) as trace:
        loss = net(x).mean()
        trace.backward_begins([loss], {})
        loss.backward()
        trace.gradients_ready(list(net.parameters()))
    assert trace.errors == [], trace.errors
    origins = locate.find_origins(trace, scene)
    return list(trace.ends.gradients), [(b.phase, b.op, str(b.rows)) for b in origins]
