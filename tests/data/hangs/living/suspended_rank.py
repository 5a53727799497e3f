# Rank 1 is stopped with SIGSTOP for 15 seconds, as by a debugger or a scheduler.
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _training import batches, guard, rank, update

for step, batch in enumerate(guard(batches[:60])):
    update(batch)
    if step == 40 and rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 15; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
guard.close()
