# HD914 rank 0 of 2
import threading

from _training import batches, guard, rank, update

lock = threading.Lock()
for step, batch in enumerate(guard(batches)):
    update(batch)
    if rank == 0:
        lock.acquire()  # here
        if step != 40:
            lock.release()
