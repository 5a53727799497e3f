# HD914 rank 1 of 2
import os
import time

from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches)):
    update(batch)
    while rank == 1 and step == 40 and not os.path.exists("/nonexistent/flag"):
        time.sleep(0.05)  # here
