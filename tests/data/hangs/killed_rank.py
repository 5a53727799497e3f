# HD608 rank 2 of 4
import os
import signal

from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    update(batch)
    if step == 40 and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
