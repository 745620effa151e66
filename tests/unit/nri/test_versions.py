from __future__ import annotations

import pytest

from nri_policy.nri.versions import LIFECYCLE, Events, Runtime, Version
from nri_policy.proto import nri_pb2
from nri_policy.proto.nri_pb2 import ConfigureRequest


def runtime(name: str = "", version: str = "", nri: str = "") -> Runtime:
    request = ConfigureRequest(runtime_name=name, runtime_version=version, NRI_version=nri)
    return Runtime.from_request(request)


def test_each_event_of_the_protocol_has_its_bit() -> None:
    numbers = {name: number for name, number in nri_pb2.Event.items() if number}
    assert {event.name: event.value for event in Events} == {
        name: 1 << (number - 1) for name, number in numbers.items()
    }


def test_the_lifecycle_mask_is_the_one_that_every_runtime_takes() -> None:
    assert LIFECYCLE == 0x7AF


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.12.2", Version(0, 12, 2)),
        ("v0.12.2", Version(0, 12, 2)),
        ("1.7.24~ds1", Version(1, 7, 24)),
        ("2.1.9+unknown", Version(2, 1, 9)),
        ("v2.4.0-beta.0", Version(2, 4, 0, released=False)),
        ("v0.12.1-0.20260301101010-abcdef012345", Version(0, 12, 1, released=False)),
        (" 1.33.0\n", Version(1, 33, 0)),
    ],
)
def test_versions_are_read_as_runtimes_write_them(text: str, version: Version) -> None:
    assert Version.parse(text) == version


@pytest.mark.parametrize(
    "text", ["", "unknown", "(devel)", "v1", "1.2", "\u0661.\u0662.\u0663", "9" * 9000]
)
def test_what_is_no_version_is_none(text: str) -> None:
    assert Version.parse(text) is None


def test_a_snapshot_sorts_before_its_release() -> None:
    assert Version(0, 12, 0) < Version(0, 12, 1, released=False) < Version(0, 12, 1)
    assert str(Version(0, 9, 1, released=False)) == "0.9.1-pre"


@pytest.mark.parametrize(
    ("name", "version", "nri"),
    [
        ("containerd", "1.6.33", None),
        ("containerd", "1.7.0", "0.3.0"),
        ("containerd", "v1.7.13", "0.4.0"),
        ("containerd", "1.7.15", "0.6.0"),
        ("containerd", "1.7.24~ds1", "0.6.1"),
        ("containerd", "1.7.26", "0.8.0"),
        ("containerd", "2.1.9+unknown", "0.8.0"),
        ("containerd", "2.2.0", "0.10.0"),
        ("containerd", "2.2.7", "0.11.0"),
        ("containerd", "2.3.4", "0.12.0"),
        ("containerd", "9.9.9", "0.12.0"),
        ("cri-o", "1.25.0", None),
        ("cri-o", "1.26.1", "0.2.0"),
        ("cri-o", "1.26.3", "0.3.0"),
        ("cri-o", "1.26.9", "0.3.1-pre"),
        ("cri-o", "1.27.0", "0.3.0"),
        ("cri-o", "1.28.4", "0.3.1-pre"),
        ("cri-o", "1.29.1", "0.5.0"),
        ("cri-o", "1.30.1", "0.6.0"),
        ("cri-o", "1.31.0-dev", "0.6.1"),
        ("cri-o", "1.32.0", "0.9.0"),
        ("cri-o", "1.33.0", "0.9.1-pre"),
        ("cri-o", "1.34.0", "0.10.0"),
        ("cri-o", "1.36.0", "0.11.0"),
        ("cri-o", "1.37.0", "0.12.0"),
        ("harness", "v9.9.9", None),
        ("containerd", "main", None),
    ],
)
def test_a_runtime_that_does_not_tell_its_nri_is_looked_up(
    name: str, version: str, nri: str | None
) -> None:
    found = runtime(name, version).nri
    assert (str(found) if found else None) == nri


def test_what_a_runtime_tells_goes_before_the_table() -> None:
    assert runtime("containerd", "1.7.24", "v0.12.2").nri == Version(0, 12, 2)


def test_a_version_that_cannot_be_read_is_looked_up() -> None:
    assert runtime("containerd", "2.3.0", "(devel)").nri == Version(0, 12, 0)


@pytest.mark.parametrize(
    ("nri", "updates_pods"),
    [("", False), ("0.9.0", False), ("0.9.1-0.2025-abc", True), ("0.10.0", True), ("1.0.0", True)],
)
def test_pod_updates_are_subscribed_to_only_where_they_exist(
    nri: str, *, updates_pods: bool
) -> None:
    expected = LIFECYCLE | Events.UPDATE_POD_SANDBOX if updates_pods else LIFECYCLE
    assert runtime(nri=nri).events(hears_starts=False) == expected


def test_the_end_of_a_start_is_subscribed_to_where_no_cgroup_shows_it() -> None:
    quiet = runtime().events(hears_starts=False)
    assert runtime().events(hears_starts=True) == quiet | Events.POST_START_CONTAINER
    assert not quiet & (Events.POST_START_CONTAINER | Events.POST_CREATE_CONTAINER)


@pytest.mark.parametrize(
    ("nri", "safe"),
    [
        ("", False),
        ("0.12.0", False),
        ("0.12.1-0.2026-abc", False),
        ("0.12.1", True),
        ("1.0.0", True),
    ],
)
def test_unsolicited_updates_are_safe_only_where_the_deadlock_is_fixed(
    nri: str, *, safe: bool
) -> None:
    assert runtime(nri=nri).unsolicited_updates_safe is safe


def test_no_runtime_that_leaves_out_its_nri_is_held_safe() -> None:
    assert not runtime("containerd", "99.0.0").unsolicited_updates_safe
    assert not runtime("cri-o", "99.0.0").unsolicited_updates_safe


@pytest.mark.parametrize(
    ("version", "deadlocks"), [("1.7.15", True), ("1.7.16", False), ("main", False)]
)
def test_old_runtimes_can_deadlock_when_a_plugin_registers(
    version: str, *, deadlocks: bool
) -> None:
    assert runtime("containerd", version).registration_can_deadlock is deadlocks


@pytest.mark.parametrize(("nri", "closes"), [("", False), ("0.11.0", False), ("0.12.0", True)])
def test_old_runtimes_can_leave_an_unsynchronized_plugin_deaf(nri: str, *, closes: bool) -> None:
    assert runtime(nri=nri).closes_unsynchronized is closes


def test_timeouts_that_old_runtimes_leave_out_have_the_usual_values() -> None:
    assert runtime().registration_timeout_ms == 5000
    assert runtime().request_timeout_ms == 2000
    named = Runtime.from_request(ConfigureRequest(registration_timeout=7000, request_timeout=3000))
    assert (named.registration_timeout_ms, named.request_timeout_ms) == (7000, 3000)
