"""What is left of a run, read together: its logs, its checkpoints, its settings."""
