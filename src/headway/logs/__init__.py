"""Logs written by other tools: reading them, naming their signals, and turning them into
records.
"""
