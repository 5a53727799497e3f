# One process that evaluates for 10 seconds and waits for input that comes.
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, model, update

for step, batch in enumerate(guard(batches[:60])):
    update(batch)
    end = time.monotonic() + 10 * (step == 40)
    while time.monotonic() < end:
        model(batch)
guard.close()
