# HD914 rank 1 of 2
import time

from _training import batches, guard, rank, update


def load(step):
    if step == 40 and rank == 1:
        time.sleep(10_000)  # here


for step, batch in enumerate(guard(batches)):
    load(step)
    update(batch)
