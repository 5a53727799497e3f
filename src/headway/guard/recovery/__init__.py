"""Recovery: snapshots, roll back, resume, preemption, quarantined batches."""
