"""Memory: leaks, retained graphs and activation checkpointing."""
