from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.systemd.scopes import (
    BUS_SOCKET,
    MAX_WAIT,
    OWN_SOCKET,
    RETRY,
    Scopes,
    cgroup_of,
    mask,
    scope_of,
)
from tests.unit.systemd.bus import Bus, listening, recorded

CGROUP = "kubepods-pod1_2.slice:cri-containerd:abc"
CPUS, MEMS = CPUSet([1, 2, 9]), CPUSet([0])


class Unpunctual(Clock, frozen=True, kw_only=True):
    """A clock whose time is up as soon as the bus was called."""

    called: asyncio.Event

    async def done_within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        assert seconds == MAX_WAIT
        await self.called.wait()
        return future.done()


def own(name: str) -> Bus:
    accepts, answers = recorded(name)
    return Bus(accepts=accepts, answers=answers)


async def answer_of(root: Path, bus: Bus, socket: str = OWN_SOCKET) -> str:
    async with listening(root / socket, bus):
        return await Scopes(root).allow(CGROUP, CPUS, MEMS)


@pytest.mark.parametrize(
    ("cgroup", "scope"),
    [
        ("kubepods-pod1_2.slice:cri-containerd:abc", "cri-containerd-abc.scope"),
        (":crio:34", "crio-34.scope"),
        ("/kubepods/pod1/abc", None),
        ("", None),
    ],
)
def test_a_cgroup_of_the_systemd_driver_is_a_scope(cgroup: str, scope: str | None) -> None:
    assert scope_of(cgroup) == scope


@pytest.mark.parametrize(
    ("parent", "runtime", "cgroup"),
    [
        ("/kubepods/pod1", "containerd", "/kubepods/pod1/c1"),
        ("/kubepods/pod1", "cri-o", "/kubepods/pod1/crio-c1"),
        ("kubepods-pod1.slice", "cri-o", "kubepods-pod1.slice:crio:c1"),
        (
            "/kubepods.slice/kubepods-pod1.slice",
            "containerd",
            "kubepods-pod1.slice:cri-containerd:c1",
        ),
    ],
)
def test_a_runtime_names_the_cgroup_of_a_container(parent: str, runtime: str, cgroup: str) -> None:
    assert cgroup_of(parent, "c1", runtime) == cgroup


def test_bit_n_of_a_mask_stands_for_n() -> None:
    assert mask(CPUSet([0])) == b"\x01"
    assert mask(CPUS) == b"\x06\x02"
    assert mask(CPUSet([64])) == bytes(8) + b"\x01"
    assert mask(EMPTY) == b""


@pytest.mark.parametrize(
    ("name", "socket"), [("own-answered", OWN_SOCKET), ("bus-answered", BUS_SOCKET)]
)
def test_a_scope_is_set_on_either_socket(name: str, socket: str, tmp_path: Path) -> None:
    bus = own(name)
    assert asyncio.run(answer_of(tmp_path, bus, socket)) == ""
    (heard,) = bus.heard
    user = str(os.geteuid()).encode().hex().encode()
    assert heard.startswith(b"\0AUTH EXTERNAL " + user + b"\r\nBEGIN\r\n")
    assert (b"Hello\0" in heard) == (socket == BUS_SOCKET)
    assert b"cri-containerd-abc.scope\0" in heard
    assert heard.endswith(b"AllowedMemoryNodes\0\x02ay\0\0\x01\0\0\0\x01")


def test_systemds_own_socket_comes_before_the_system_bus(tmp_path: Path) -> None:
    async def run() -> tuple[Bus, Bus]:
        first, second = own("own-answered"), own("bus-answered")
        async with (
            listening(tmp_path / OWN_SOCKET, first),
            listening(tmp_path / BUS_SOCKET, second),
        ):
            assert await Scopes(tmp_path).allow(CGROUP, CPUS) == ""
        return first, second

    first, second = asyncio.run(run())
    assert (len(first.heard), len(second.heard)) == (1, 0)


def test_memory_nodes_are_left_alone_unless_given(tmp_path: Path) -> None:
    async def run() -> Bus:
        async with listening(tmp_path / OWN_SOCKET, own("own-answered")) as bus:
            assert await Scopes(tmp_path).allow(CGROUP, CPUS) == ""
        return bus

    (heard,) = asyncio.run(run()).heard
    assert heard.endswith(b"AllowedCPUs\0\x02ay\0\x02\0\0\0\x06\x02")


@pytest.mark.parametrize(
    ("name", "socket", "reason"),
    [
        ("own-gone", OWN_SOCKET, "systemd: Unit cri-containerd-gone.scope not found."),
        ("bus-gone", BUS_SOCKET, "systemd: Unit cri-containerd-gone.scope not found."),
        ("bus-refused", BUS_SOCKET, "systemd refuses it: Permission denied"),
    ],
)
def test_what_systemd_answers_is_the_reason(
    name: str, socket: str, reason: str, tmp_path: Path
) -> None:
    assert asyncio.run(answer_of(tmp_path, own(name), socket)) == reason


def test_a_systemd_that_knows_no_cpus_of_a_scope_is_too_old(tmp_path: Path) -> None:
    bus = own("own-unknown")
    bus.answers = bus.answers.replace(b"AllowedXXXs", b"AllowedCPUs")
    assert "older than version 244" in asyncio.run(answer_of(tmp_path, bus))


def test_without_a_socket_the_reason_names_it(tmp_path: Path) -> None:
    reason = asyncio.run(Scopes(tmp_path).allow(CGROUP, CPUS))
    assert reason == f"{tmp_path / BUS_SOCKET}: No such file or directory"


def test_a_cgroup_that_is_no_scope_is_not_asked_about(tmp_path: Path) -> None:
    reason = asyncio.run(Scopes(tmp_path).allow("/kubepods/pod1/abc", CPUS))
    assert reason == "/kubepods/pod1/abc is no scope of systemd"


def test_a_systemd_that_is_silent_is_given_up(tmp_path: Path) -> None:
    async def run() -> str:
        bus = Bus(accepts=recorded("own-answered")[0], answers=b"")
        async with listening(tmp_path / OWN_SOCKET, bus):
            return await Scopes(tmp_path, Unpunctual(called=bus.called)).allow(CGROUP, CPUS)

    assert asyncio.run(run()) == "systemd did not answer within 1 s"


@pytest.mark.parametrize(
    ("accepts", "answers", "reason"),
    [
        (b"REJECTED EXTERNAL\r\n", b"", "accepts no user"),
        (b"x" * (1 << 17), b"", "not understood"),
        (b"", b"", "ended without an answer"),
        (b"OK 1\r\n", b"", "ended without an answer"),
        (b"OK 1\r\n", b"l\x02\x01\x01", "ended without an answer"),
        (b"OK 1\r\n", b"HTTP/1.1 400 Bad Request\r\n", "not understood"),
        (b"OK 1\r\n", b"l\x02\x01\x01" + b"\xff" * 12, "not understood"),
        (
            b"OK 1\r\n",
            b"l\x02\x01\x01" + bytes(8) + b"\x05\0\0\0\x05\x01u\0\x02\0\0\0",
            "not understood",
        ),
    ],
)
def test_what_is_no_answer_is_a_reason_too(
    accepts: bytes, answers: bytes, reason: str, tmp_path: Path
) -> None:
    bus = Bus(accepts=accepts, answers=answers, hangs_up=True)
    assert reason in asyncio.run(answer_of(tmp_path, bus))


def test_what_fails_for_every_scope_is_not_tried_again_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        now = [0.0]
        scopes = Scopes(tmp_path, Clock(now=lambda: now[0]))
        refusing, answering = own("bus-refused"), own("own-answered")
        async with listening(tmp_path / BUS_SOCKET, refusing):
            first = await scopes.allow(CGROUP, CPUS)
            assert await scopes.allow("a.slice:crio:other", CPUS) == first
        assert len(refusing.heard) == 1
        async with listening(tmp_path / OWN_SOCKET, answering):
            assert await scopes.allow(CGROUP, CPUS) == first
            now[0] = RETRY
            assert await scopes.allow(CGROUP, CPUS) == ""

    asyncio.run(run())


def test_what_fails_for_one_scope_fails_for_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        scopes = Scopes(tmp_path)
        async with listening(tmp_path / OWN_SOCKET, own("own-gone")):
            assert await scopes.allow(CGROUP, CPUS)
        async with listening(tmp_path / OWN_SOCKET, own("own-answered")):
            assert await scopes.allow(CGROUP, CPUS) == ""

    asyncio.run(run())
