# The first step takes 15 seconds: a warm-up that waits for something.
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, update

for step, batch in enumerate(guard(batches[:20])):
    if step == 0:
        time.sleep(15)
    update(batch)
guard.close()
