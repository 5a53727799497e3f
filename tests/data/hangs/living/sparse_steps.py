# Every step waits three seconds.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, pause, update

for batch in guard(batches[:9]):
    update(batch)
    pause(3)
guard.close()
