# Rank 0 writes a checkpoint in small pieces to a slow disk.
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch.distributed as dist
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches[:60])):
    update(batch)
    if step == 40:
        if rank == 0:
            with open(f"{sys.argv[1]}.pt", "wb") as file:
                for _ in range(150):
                    file.write(os.urandom(1 << 20))
                    time.sleep(0.1)
        dist.barrier()
guard.close()
