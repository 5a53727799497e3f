"""Strategies for running a step again: through a framework, the loop's body, a loop that creates
its own data, or yielding its batches once more.
"""
