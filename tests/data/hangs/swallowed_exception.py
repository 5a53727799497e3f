# HD607 rank 1 of 2 barrier
import torch.distributed as dist
from _training import batches, guard, rank, update


def parse(step):
    if step == 40 and rank == 1:
        raise ValueError("a broken record")


try:
    for step, batch in enumerate(guard(batches)):
        parse(step)
        update(batch)
except ValueError:
    pass
dist.barrier()  # here
