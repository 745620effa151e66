"""Describes what is decided but not set, because the settings do not pin it."""

from __future__ import annotations


def describe_unset(*, pin_cpu: bool, pin_memory: bool) -> str:
    """Return a sentence about what is decided but not set; empty if everything is set."""
    unset = {} if pin_cpu else {"pinCPU": "CPUs"}
    unset |= {} if pin_memory else {"pinMemory": "memory nodes"}
    if not unset:
        return ""
    because = " and ".join(f"{field} is false" for field in unset)
    also = "" if pin_cpu or pin_memory else ", and no container is refused"
    return f"{because}: {' and '.join(unset.values())} are decided on, but not set{also}"
