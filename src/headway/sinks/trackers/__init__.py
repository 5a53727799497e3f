"""Passing what a guard measures on to the trackers people already use.

    base.py            what a tracker is; one row of numbers; bringing a tracker's package in
    numbers.py         from a step's record to the keys people look for
    alerts.py          a finding as a title and a few lines
    queue.py           a bounded queue and a thread, so that no tracker can slow a step
    choose.py          from a name or an object of the user's to its tracker
    tensorboard.py, wandb.py, mlflow.py, trackio.py, python_logging.py: one tracker each

`Guard(…, trackers=["tensorboard", run, …])` is how they are asked for. Nothing here imports a
tracker's package before it is used.
"""
