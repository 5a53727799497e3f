# HD914 rank 2 of 4
import queue

from _training import batches, guard, rank, update

ready = queue.Queue()
for step, batch in enumerate(guard(batches)):
    if not (rank == 2 and step == 40):
        ready.put(batch)
    update(ready.get())  # here
