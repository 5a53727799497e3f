"""One small file per peer: how it is put into a script, and how what it says is read."""
