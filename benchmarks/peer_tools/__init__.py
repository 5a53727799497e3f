"""One small file per tool: how it is inserted into a script, and how its output is read."""
