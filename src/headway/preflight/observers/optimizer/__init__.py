"""Observers of optimizers, schedules and resumes."""
