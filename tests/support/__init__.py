"""What tests share: small trainings, rank processes, strategies, readers of what was written."""
