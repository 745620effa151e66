"""Which loggers say more, as the settings have it."""

from __future__ import annotations

import logging
from collections.abc import Collection


def set_levels(debug: Collection[str]) -> None:
    """Let the *debug* loggers say everything, all of them for `*`, and the others what matters."""
    logging.getLogger().setLevel(logging.DEBUG if "*" in debug else logging.INFO)
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if name in debug or not isinstance(logger, logging.Logger):
            continue
        if logger.level == logging.DEBUG:
            logger.setLevel(logging.NOTSET)
    for name in debug:
        if name != "*":
            logging.getLogger(name).setLevel(logging.DEBUG)
