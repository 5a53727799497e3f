"""Ways to run a step again: the loop's body, a loop that makes its own data, or tracing the next
step.
"""
