# HD607 rank 0 of 2 all_reduce
import torch.distributed as dist
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    loss = update(batch)
    if step == 40 and rank == 0:
        dist.all_reduce(loss)  # here
