# HD607 rank 3 of 4 broadcast
import torch.distributed as dist
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    loss = update(batch)
    if step == 40 and rank == 3:
        dist.broadcast(loss, src=0)  # here
