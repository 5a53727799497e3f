"""Readers of log formats: each recognises a file by its first bytes and reads it into a Log."""
