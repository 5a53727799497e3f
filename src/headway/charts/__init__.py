"""From the records of a run, however many, to the few thousand points that a chart can show."""
