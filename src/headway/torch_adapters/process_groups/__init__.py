"""Process groups: the ranks that decide together, sharded tensors, state of communication hooks."""
