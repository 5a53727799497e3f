# HD608 rank 1 of 2
from _training import batches, guard, rank, update


def parse(step):
    if step == 40 and rank == 1:
        raise ValueError("a broken record")  # here


for step, batch in enumerate(guard(batches)):
    parse(step)
    update(batch)
