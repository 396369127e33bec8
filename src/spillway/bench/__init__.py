"""Measures a broker from outside: load over HTTP, a plain-COPY baseline over SQL, one report.

In comes a workload, out goes one `report.Report`. It speaks HTTP and SQL like any outsider and
imports no other room.
"""
