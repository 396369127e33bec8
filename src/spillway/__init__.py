"""Spillway: a durable message queue on PostgreSQL, with a replayable log over the same records."""
