"""The truth: commits and reads in, rows of PostgreSQL out; imports core only."""
