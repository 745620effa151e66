"""What people ask the running service: where groups would go, and why. Nothing changes by it."""

from __future__ import annotations

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.trial import find_group
from nri_policy.cluster.numa.aligned_engine import AlignedEngine
from nri_policy.cluster.numa.answers import explain_group, try_groups
from nri_policy.cluster.numa.extender import BadRequestError, read_json
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.group import PlacementGroup
from nri_policy.cluster.objects.workload import read_groups
from nri_policy.foundation.wording import quoted


def answer_place(engine: AlignedEngine, body: bytes) -> bytes:
    """Return where each of the groups in a list of objects would go, one after another."""
    groups = _groups(read_json(body))
    try:
        return msgspec.json.encode(try_groups(engine.fork(), groups, live=True))
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def answer_explain(engine: AlignedEngine, body: bytes) -> bytes:
    """Return the explanation of a group: one in a list of objects, or the name of a known one."""
    given = read_json(body)
    group = _find_known(engine, given) if isinstance(given, str) else _one(_groups(given))
    try:
        return msgspec.json.encode(explain_group(engine, group, live=True))
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def _groups(given: object) -> list[PlacementGroup]:
    if not isinstance(given, list):
        raise BadRequestError(f"{quoted(given)} is not a list of objects")
    try:
        return read_groups(given)
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def _one(groups: list[PlacementGroup]) -> PlacementGroup:
    if len(groups) != 1:
        raise BadRequestError(f"{len(groups)} groups; one can be explained at a time")
    return groups[0]


def _find_known(engine: Engine, name: str) -> PlacementGroup:
    try:
        return find_group(engine, name)
    except DocumentError as error:
        raise BadRequestError(str(error)) from error
