"""What this process is doing now: the stacks of its threads and its collectives."""
