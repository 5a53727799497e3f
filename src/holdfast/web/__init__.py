"""The live page over the runs below a folder: `holdfast serve`. Reads, and never writes there."""
