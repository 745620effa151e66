"""Refused: the base of the errors that the engine answers an event with."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - an outcome of an event, not a fault of the program
    """An event is refused, and nothing has changed; the text is for who caused it.

    A container that finds no place (PlacementError), an annotation that makes no sense
    (AnnotationError), amounts that the kernel does not take (AmountsError), settings or a machine
    that leave too little (CapacityError).
    """
