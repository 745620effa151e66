"""What comes of a write: what the API server says, and what the controller makes of it."""

from __future__ import annotations

import asyncio
from http.client import CONFLICT, NOT_FOUND, SERVICE_UNAVAILABLE, UNPROCESSABLE_ENTITY
from typing import Any, cast

import msgspec
import pytest

from nri_policy.cluster.groups import controller
from nri_policy.cluster.groups.writes import Notice, Write, WriteStatus
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.service import sources
from nri_policy.cluster.service.kinds import GROUPS
from nri_policy.cluster.service.writer import Writer
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client, Listing, ObjectKind
from nri_policy.kube.errors import APIError
from tests.support.placement_world import Object, Play


class Answering:
    """An API server that answers all writes with one status, and lists groups."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.groups: list[Object] = []

    async def merge(self, *_args: Any, **_kwargs: Any) -> Object:
        raise APIError("as the test wants it", code=self.code)

    async def list(self, kind: ObjectKind) -> Listing:
        assert kind.plural == "placementgroups"
        if self.code:
            raise APIError("as the test wants it", code=self.code)
        return Listing(items=self.groups, revision="1")


def writer_of(play: Play, client: Answering, *, leading: bool = True) -> Writer:
    return Writer(cast("Client", client), play.controller, lambda: leading)


def placing() -> tuple[Play, Write]:
    """A group that is about to get its places."""
    play = Play()
    play.world.submit("j", 3, 1, "example.com/rack")
    play.listen()
    play.step()
    play.listen()
    (write, _event) = play.controller.step()
    assert isinstance(write, WriteStatus)
    assert write.group.status.assignments
    return play, write


@pytest.mark.parametrize(
    ("code", "outcome", "again", "promised"),
    [
        (0, "failed", "as it was", True),  # no answer: it may have been done
        (SERVICE_UNAVAILABLE, "failed", "as it was", True),
        (CONFLICT, "outdated", "", True),  # by a change that is not seen yet: its own, perhaps
        (UNPROCESSABLE_ENTITY, "failed", "decided anew", False),
        (NOT_FOUND, "outdated", "decided anew", False),
    ],
)
def test_what_is_promised_after_a_write(
    code: int, outcome: str, again: str, promised: bool
) -> None:
    play, write = placing()
    writer = writer_of(play, Answering(code))
    asyncio.run(writer._write(write))
    assert writer.written == {("WriteStatus", outcome): 1}
    status = play.controller.engine.state.groups["default", "job-j"].status
    assert bool(status.assignments) == promised
    if outcome == "failed":
        assert not [each for each in play.controller.step() if isinstance(each, WriteStatus)]
        play.now += 1.0
    writes = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    assert len(writes) == bool(again)
    assert any(each is write for each in writes) == (again == "as it was")


def test_who_does_not_lead_writes_nothing_and_does_not_know_what_came_of_earlier_tries() -> None:
    play, write = placing()
    writer = writer_of(play, Answering(), leading=False)
    asyncio.run(writer._write(write))
    assert writer.written == {("WriteStatus", "not leading"): 1}
    assert play.controller.engine.state.groups["default", "job-j"].status.assignments
    play.controller.settle()
    assert not play.controller.engine.state.groups["default", "job-j"].status.assignments


def test_who_begins_to_lead_knows_all_groups_first() -> None:
    play, _ = placing()
    client = Answering()
    writer = writer_of(play, client)
    group = play.world.objects["groups"]["job-j"]
    group["metadata"]["namespace"] = "default"
    client.groups = [group]
    assert asyncio.run(writer._is_current())
    play.world.put("groups", group)  # by the one that led before
    client.groups = [play.world.objects["groups"]["job-j"]]
    assert not asyncio.run(writer._is_current())
    play.notify("groups", "job-j")
    assert asyncio.run(writer._is_current())
    client.code = SERVICE_UNAVAILABLE
    assert not asyncio.run(writer._is_current())


@pytest.mark.parametrize("mistake", ["of its author", "of ours"])
def test_who_begins_to_lead_does_not_wait_for_a_group_that_cannot_be_taken(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, _ = placing()
    client = Answering()
    writer = writer_of(play, client)
    group = play.world.objects["groups"]["job-j"]
    group["metadata"] |= {"namespace": "default", "name": "wrong"}
    if mistake == "of ours":
        monkeypatch.setattr(controller, "find_disagreement", lambda _: 1 // 0)
    else:
        group["spec"] = None
    client.groups = [group]
    assert not asyncio.run(writer._is_current())
    (followed,) = [each for each in sources._of_groups(play.controller) if each.kind == GROUPS]
    with pytest.raises((DocumentError, ZeroDivisionError)):
        followed.take(msgspec.Raw(msgspec.json.encode(group)))
    assert asyncio.run(writer._is_current())


def test_others_have_their_turn_while_a_new_leader_looks_at_all_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "SLICE", 1)
    play = Play()
    for number in range(20):
        play.world.submit(f"j{number}", 1, 1, "example.com/rack")
    play.listen()
    writer = writer_of(play, Answering(NOT_FOUND))
    writer._current = True
    busy = []

    async def watch() -> None:
        task = asyncio.create_task(writer.run())
        while play.controller.busy:
            busy.append(len(play.controller._dirty) + len(play.controller._counted))
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(watch())
    assert len(busy) > 20
    assert busy == sorted(busy, reverse=True)


class Keeping:
    """An API server that keeps what is created."""

    def __init__(self) -> None:
        self.made: list[Object] = []

    async def create(self, _kind: ObjectKind, item: Object, *, namespace: str) -> None:
        assert item["metadata"]["namespace"] == namespace
        self.made.append(item)


@pytest.mark.parametrize(("pod", "uid"), [(True, "u-j-0"), (False, "u-job-j")])
async def test_an_event_has_its_time_and_whom_it_is_about(pod: bool, uid: str) -> None:
    """`kubectl get events` shows the time; `kubectl describe` finds it by the uid."""
    play, _ = placing()
    item = play.world.objects["groups"]["job-j"]
    play.world.put("groups", item | {"metadata": item["metadata"] | {"uid": "u-job-j"}})
    play.listen()
    client = Keeping()
    clock = Clock(date=lambda: 86400.0)
    writer = Writer(cast("Client", client), play.controller, lambda: True, clock)
    await writer._write(Notice(("default", "j-0" if pod else "job-j"), "Placed", "", pod=pod))
    [event] = client.made
    assert event["involvedObject"]["uid"] == uid
    assert event["firstTimestamp"] == event["lastTimestamp"] == "1970-01-02T00:00:00Z"
    assert (event["type"], event["source"]) == ("Normal", {"component": "nri-policy-cluster"})
