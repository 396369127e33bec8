"""The spool: pushes accepted while PostgreSQL is away, fsynced in files that anyone can read."""
