"""Checks of gradients, clipping and accumulation (HD2xx)."""
