"""Records the ops of a training step below autograd and runs them again."""
