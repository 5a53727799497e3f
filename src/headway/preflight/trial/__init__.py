"""Trial updates on recorded steps: the loss along an update, its parts, and overfitting one
batch.
"""
