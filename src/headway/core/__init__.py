"""The basic types that all other modules use: signals, records, checks, findings.

Standard library only. Nothing here knows where a record came from (a live run, a
run directory, the log of another tool) or where a finding goes.
"""
