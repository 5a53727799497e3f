# A pause of 20 seconds without any activity, after which the run continues and ends well.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, pause, rank, update

for step, batch in enumerate(guard(batches[:60])):
    update(batch)
    pause(20.0 if step == 40 and rank == 1 else 0.0)
guard.close()
