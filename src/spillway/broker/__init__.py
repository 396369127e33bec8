"""The shell around the core: requests in, committed replies out.

Imports core, log, spool, warm and relay.
"""
