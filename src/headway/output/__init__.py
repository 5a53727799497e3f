"""Renders reports: console, JSON, GitHub, SARIF, HTML, notebooks, and trackers."""
