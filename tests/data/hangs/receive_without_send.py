# HD607 rank 1 of 2 recv
import torch
import torch.distributed as dist
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    update(batch)
    if step == 40 and rank == 1:
        dist.recv(torch.zeros(1), src=0)  # here
