"""A run directory that is read while it grows: the lines of a file, and the records of a run.

Only whole lines are taken, the last one may be half written. A file that was cut, or is another one
under the same name, is noticed. Whoever wants records asks `records.py`; whoever is in more of a
hurry than that, the charts, takes the lines of `lines.py`.
"""
