"""Which replica leads: never two at once, whatever is slow, lost or crashed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.cluster.service.lease import LASTS, LEADS, Lease, LeaseName
from nri_policy.foundation.clock import Clock
from nri_policy.kube.errors import APIError

Object = dict[str, Any]


class Server:
    """The one Lease, as an API server keeps it, and the time."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.time = 0.0
        self.down = False

    def _found(self) -> Object:
        self._reach()
        if self.lease is None:
            raise APIError("404: not found", code=404)
        found: Object = json.loads(json.dumps(self.lease))
        return found

    def _reach(self) -> None:
        if self.down:
            raise APIError("no route to host")

    async def get(self, *_: object, **__: object) -> Object:
        return self._found()

    async def create(self, _kind: object, new: Object, **_: object) -> None:
        self._reach()
        if self.lease is not None:
            raise APIError("409: already exists", code=409)
        self.lease = new
        self.lease["metadata"]["resourceVersion"] = "1"

    async def merge(self, _kind: object, _name: str, patch: Object, **_: object) -> None:
        found = self._found()
        if found["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise APIError("409: modified", code=409)
        found["spec"] |= patch["spec"]
        found["metadata"]["resourceVersion"] += "1"
        self.lease = found

    def replica(self, name: str) -> Lease:
        clock = Clock(now=lambda: self.time)
        return Lease(self, LeaseName("kube-system", "x", name), clock)  # type: ignore[arg-type]

    @property
    def spec(self) -> Object:
        assert self.lease is not None
        spec: Object = self.lease["spec"]
        return spec


def take(lease: Lease) -> str:
    """Let it try, as `run` does; the error's text."""
    try:
        asyncio.run(lease.take())
    except APIError as error:
        return str(error)
    return ""


def test_the_first_leads_and_renews_and_the_second_waits() -> None:
    server = Server()
    first, second = server.replica("first"), server.replica("second")
    assert first.problem() == "the lease is not read yet"
    for _ in range(10):
        assert take(first) == take(second) == ""
        assert (first.leading, second.problem()) == (True, "first leads")
        server.time += 2
    assert server.spec["leaseTransitions"] == 0
    assert server.spec["leaseDurationSeconds"] == LASTS


def test_the_second_takes_it_once_the_first_has_long_stopped_to_lead() -> None:
    server = Server()
    first, second = server.replica("first"), server.replica("second")
    take(first)
    take(second)
    server.time = LEADS
    assert not first.leading
    server.time = LASTS - 0.1
    take(second)
    assert second.problem() == "first leads"
    server.time = LASTS
    take(second)
    assert second.leading
    assert server.spec["leaseTransitions"] == 1
    take(first)
    assert first.problem() == "second leads"


def test_a_clock_that_differs_is_of_no_concern() -> None:
    """What a Lease says of times is for people: only how long it has not changed counts."""
    server = Server()
    first, second = server.replica("first"), server.replica("second")
    take(first)
    server.spec["renewTime"] = "1999-01-01T00:00:00.000000Z"
    take(second)
    assert not second.leading


def test_one_that_is_let_go_is_taken_at_once() -> None:
    server = Server()
    first, second = server.replica("first"), server.replica("second")
    take(first)
    take(second)
    asyncio.run(first.release())
    assert not first.leading
    take(second)
    assert second.leading
    asyncio.run(first.release())  # it is not its own any more
    assert server.spec["holderIdentity"] == "second"


def test_who_is_slower_does_not_get_it() -> None:
    server = Server()
    first, second = server.replica("first"), server.replica("second")
    take(first)
    asyncio.run(first.release())
    found = asyncio.run(server.get())

    async def earlier(*_: object, **__: object) -> Object:
        return found

    take(first)
    server.get = earlier  # type: ignore[method-assign]
    assert take(second) == "409: modified"
    assert not second.leading


def test_a_server_that_is_away_ends_it_in_time() -> None:
    server = Server()
    lease = server.replica("first")
    take(lease)
    server.down = True
    server.time = LEADS - 0.1
    assert take(lease) == "no route to host"
    assert lease.leading
    server.time = LEADS
    assert not lease.leading


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2]),
            st.sampled_from(["take", "take", "take", "release", "down", "up"]),
            st.sampled_from([0.0, 1.0, 2.5, LEADS, LASTS]),
        ),
        max_size=40,
    )
)
def test_two_never_lead_at_once(events: list[tuple[int, str, float]]) -> None:
    server = Server()
    replicas = [server.replica(f"r{number}") for number in range(3)]
    for at, what, after in events:
        server.time += after
        if what == "take":
            take(replicas[at])
        elif what == "release":
            asyncio.run(replicas[at].release())
        else:
            server.down = what == "down"
        assert sum(each.leading for each in replicas) <= 1
