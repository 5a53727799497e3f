# HD607 rank 2 of 4 reduce
import torch.distributed as dist
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    loss = update(batch)
    if step % 10 == 0 and not (rank == 2 and step == 40):
        dist.all_reduce(loss)
    elif step % 10 == 0:
        dist.reduce(loss, dst=0)  # here
