"""The demo: a small model trains, one batch is bad, the guard skips the update, and every claim is
measured.
"""
