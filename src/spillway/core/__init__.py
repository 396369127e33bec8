"""The pure heart: commands and events in, decisions and new states out.

Imports only the standard library, and of that no clock, chance or IO.
"""
