"""The steps of a scenario: what is to happen in a cluster, when, and what is expected then."""

from __future__ import annotations

from typing import Any, get_args

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, convert, join
from nri_policy.cluster.requests.group import State
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import quoted

_ACTIONS = ("apply", "delete", "scale", "fail", "recover", "advance", "expect")


class Expected(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The expected state of a group; fields without a value match anything."""

    state: State | None = None
    message: str | None = None  # a part of it
    domains: dict[str, int] | None = None  # pods by the last value of the domains above hosts


class SimulationStep(
    Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"runs": "for"}
):
    """One step: its time, and exactly one action."""

    at: str | None = None  # since the start; a step without it comes at once
    runs: str | None = None  # for how long groups run that are applied
    kind: str | None = None  # of these groups, in figures
    apply: list[Any] | None = None
    delete: list[str] | None = None
    scale: dict[str, int | dict[str, int]] | None = None  # pods of a group, or by pod set
    fail: list[str] | None = None
    recover: list[str] | None = None
    advance: str | None = None
    expect: dict[str, Expected] | None = None


def read_steps(documents: list[object]) -> list[SimulationStep]:
    """Return the steps of a scenario, by time; raises DocumentError."""
    steps, now = [], 0.0
    for number, value in enumerate(documents):
        path = f"step {number + 1}"
        step = _read_step(value, path)
        named = [name for name in _ACTIONS if getattr(step, name) is not None]
        if len(named) != 1:
            raise DocumentError(path, f"has {len(named)} of {', '.join(_ACTIONS)}")
        at, _, passed = (
            0.0 if text is None else _seconds(text, join(path, name))
            for name, text in (("at", step.at), ("for", step.runs), ("advance", step.advance))
        )
        if step.at is not None and at < now:
            raise DocumentError(
                join(path, "at"), f"{quoted(step.at)} is over: the steps before take {now:g} s"
            )
        now = max(now, at) + passed
        steps.append(step)
    return steps


def _read_step(value: object, path: str) -> SimulationStep:
    try:
        return convert(value, SimulationStep, path)
    except DocumentError as error:
        name = error.path.rpartition(".")[2]
        if name == "state":
            error.text += f"; there are: {', '.join(get_args(State))}"
        elif name in ("at", "for", "advance"):
            error.text = "is not a duration such as 30s"
        raise


def _seconds(text: str, path: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise DocumentError(path, str(error)) from None
