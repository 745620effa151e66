"""What people ask the running service: where groups would go, and why. Nothing changes by it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.extender import BadRequestError, read_json
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.planning.group_answers import explain_group, try_groups
from nri_policy.cluster.planning.job_set_steps import expect_steps
from nri_policy.cluster.planning.pods_alone import single_out
from nri_policy.cluster.planning.preview import find_group, pick_group
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.workloads.workload import read_groups
from nri_policy.foundation.wording import quoted


def answer_place(engine: Engine, body: bytes) -> bytes:
    """Return where each of the groups in a list of objects would go, one after another."""
    given = read_json(body)
    try:
        return msgspec.json.encode(try_groups(engine.fork(), _groups(given), live=True))
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def answer_explain(engine: Engine, body: bytes) -> bytes:
    """Return the explanation of a group: the only one in a list of objects, or one of a name.

    The name belongs to a known group, or to one of the `objects` given beside the `name`.
    """
    given = read_json(body)
    try:
        if isinstance(given, str):
            group = find_group(engine.state.groups, given)
        else:
            name = given.pop("name", None) if isinstance(given, dict) else None
            if name is not None and not isinstance(name, str):
                raise BadRequestError(f"name: {quoted(name)} is no name")
            groups = _groups(given.get("objects") if isinstance(given, dict) else given)
            engine = engine.fork()
            expect_steps(engine.state, groups)
            group = pick_group(groups, name, "the objects")
        engine, group, notes = single_out(engine, group)
        found = explain_group(engine, group, live=True)
        return msgspec.json.encode(replace(found, notes=[*notes, *found.notes]))
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def _groups(given: object) -> list[PlacementGroup]:
    if not isinstance(given, list):
        raise BadRequestError(f"{quoted(given)} is not a list of objects")
    return read_groups(given)
