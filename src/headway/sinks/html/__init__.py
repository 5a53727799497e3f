"""A report as one HTML file that needs nothing else: no network, no folder of assets beside it."""
