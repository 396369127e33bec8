"""Logs: an event is a snake_case noun and verb, its details are keys; JSON but on a terminal."""

import logging
import sys

import structlog


def set_up_logs(level: str) -> None:
    """Log to stderr, so that stdout stays for data."""
    pretty = sys.stderr.isatty()
    # Its pool tells of every attempt in vain; that PostgreSQL is away is an event of ours.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
