"""Diagnosing what a run left behind: its logs, checkpoints and settings."""
