# HD607 rank 1 of 2 barrier
import torch.distributed as dist
from _training import batches, guard, rank, update

for batch in guard(batches[: 45 if rank == 0 else 40]):
    update(batch)
dist.barrier()  # here
