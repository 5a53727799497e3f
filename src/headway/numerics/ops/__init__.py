"""Ops that stay finite, in value and in gradient, where torch's own do not."""
