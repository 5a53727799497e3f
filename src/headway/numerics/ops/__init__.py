"""Ops that stay finite, in value and in gradient, where the plain ones do not. One file each.

Each is torch's own op wherever that is fine. Its docstring says where it is not, what is done there
and how much that bends the function. NaN that comes in goes out: nothing is hidden.
"""
