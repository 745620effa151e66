"""Refused: the base of the errors that the engine answers an event with."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - an outcome of an event, not a fault of the program
    """An event is refused, and nothing has changed; the text is for its author.

    A container without a place (PlacementError), a malformed annotation (AnnotationError), amounts
    that the kernel refuses (AmountsError), settings or a machine that leave too little
    (CapacityError).
    """
