"""Diagnostics on stderr through structlog; loaded only by a call that has something to say."""

from __future__ import annotations

import logging
import sys

import structlog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def logger(log_format: str, level: str) -> FilteringBoundLogger:
    """A structlog logger to stderr: `json` one object a line, `console` plain text (colour on a terminal only)."""
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    found: FilteringBoundLogger = structlog.get_logger()
    return found
