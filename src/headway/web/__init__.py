"""The live page over the runs below a folder: `headway serve`. Reads only."""
