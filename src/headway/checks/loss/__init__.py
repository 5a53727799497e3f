"""Checks of the loss and its components (HD1xx)."""
