# HD608 rank 1 of 2
import sys

from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    update(batch)
    if step == 40 and rank == 1:
        sys.exit(0)
