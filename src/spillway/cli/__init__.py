"""The command line, one file per noun: arguments in, client calls or wired services out.

The only package that may import wiring.
"""
