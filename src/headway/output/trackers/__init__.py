"""Passes what a guard measures to experiment trackers: TensorBoard, W&B, MLflow, trackio,
`logging`.
"""
