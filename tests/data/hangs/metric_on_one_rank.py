# HD607 rank 0 of 2 all_gather
import torch
import torch.distributed as dist
from _training import batches, guard, rank, size, update

for step, batch in enumerate(guard(batches)):
    loss = update(batch)
    if step == 40 and rank == 0:
        parts = [torch.zeros_like(loss) for _ in range(size)]
        dist.all_gather(parts, loss)  # here
