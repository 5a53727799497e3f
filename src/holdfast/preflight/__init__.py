"""Before a run: a few real steps under full watch.

    hub.py         hears everything torch does while a script runs, and tells the observers
    observer.py    what an observer is: one idea, one file in `observers/`
    scene.py       what every observer may ask: the step, the names, the user's line
    evidence.py    where observers put what they saw; the checks read it from the stream
    check_run.py   all of it together around a script or a function

Observers measure and never judge: judging is what checks do.
"""
