# Pauses of 2, 4 and 8 seconds, each within three times the one before plus three seconds.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, pause, update

for step, batch in enumerate(guard(batches[:60])):
    update(batch)
    pause({20: 2.0, 30: 4.0, 40: 8.0}.get(step, 0.0))
guard.close()
