"""Readers of log formats, one module each; console logs are rows of `console_dialects.py`."""
