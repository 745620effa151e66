from __future__ import annotations

import pytest

from nri_policy.nri.release import Release
from nri_policy.nri.versions import Version
from nri_policy.proto import nri_pb2 as nri


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [
        ("containerd", "1.7.0", Version(0, 3, 0)),
        ("containerd", "1.7.24~ds1", Version(0, 6, 1)),
        ("containerd", "v1.7.26", Version(0, 8, 0)),
        ("containerd", "2.1.9", Version(0, 8, 0)),
        ("containerd", "2.2.0", Version(0, 10, 0)),
        ("containerd", "2.3.4", Version(0, 12, 0)),
        ("containerd", "v2.4.0-beta.1", Version(0, 12, 2)),
        ("cri-o", "1.32.5", Version(0, 9, 0)),
        ("cri-o", "1.26.4", Version(0, 3, 1, released=False)),
        ("cri-o", "1.36.0", Version(0, 11, 0)),
    ],
)
def test_a_release_ships_its_nri(name: str, version: str, nri_version: Version) -> None:
    assert Release.of(name, version).nri_version == nri_version


def test_another_nri_can_be_given() -> None:
    assert Release.of("containerd", "2.1.9", Version(0, 12, 1)).nri_version == Version(0, 12, 1)


@pytest.mark.parametrize(
    ("name", "version"), [("docker", "1.0.0"), ("containerd", "new"), ("containerd", "1.6.9")]
)
def test_there_is_no_such_release(name: str, version: str) -> None:
    with pytest.raises(ValueError, match=version):
        Release.of(name, version)


@pytest.mark.parametrize(
    ("name", "version", "mask"),
    [
        ("containerd", "2.1.9", 0x07FF),
        ("cri-o", "1.32.0", 0x07FF),
        ("cri-o", "1.33.0", 0x1FFF),
        ("containerd", "2.2.0", 0x3FFF),
    ],
)
def test_known_events(name: str, version: str, mask: int) -> None:
    assert Release.of(name, version).known_events == mask


def test_configuration_says_what_the_version_can_say() -> None:
    said = [
        Release.of("containerd", version).configuration(
            registration_timeout=5.0, request_timeout=2.0
        )
        for version in ("1.7.24", "2.1.9", "2.3.0")
    ]
    assert [request.registration_timeout for request in said] == [0, 5000, 5000]
    assert [request.request_timeout for request in said] == [0, 2000, 2000]
    assert [request.NRI_version for request in said] == ["", "", "v0.12.0"]
    assert said[0].runtime_name == "containerd"
    assert said[0].runtime_version == "1.7.24"


@pytest.mark.parametrize(
    ("version", "index", "name", "refusal"),
    [
        ("2.1.9", "10", "any name", ""),
        ("2.3.0", "10", "any name", "invalid plugin name 'any name'"),
        ("2.3.0", "10", "a_B-1.2+3", ""),
        ("2.1.9", "1", "a", "invalid plugin index '1', must be two digits"),
        ("2.1.9", "1x", "a", "invalid plugin index '1x', must be two digits"),
        ("2.1.9", "٣٣", "a", "invalid plugin index '٣٣', must be two digits"),
        ("2.1.9", "10", "", "plugin name is empty"),
    ],
)
def test_a_runtime_refuses_bad_names_and_indexes(
    version: str, index: str, name: str, refusal: str
) -> None:
    request = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
    assert Release.of("containerd", version).refusal(request) == refusal


def test_older_versions_ignore_what_they_do_not_know() -> None:
    wanted = nri.ContainerAdjustment(args=["x"], rlimits=[nri.POSIXRlimit(type="NOFILE")])
    wanted.linux.oom_score_adj.value = 1
    wanted.linux.scheduler.nice = 1
    wanted.linux.resources.pids.limit = 5
    wanted.linux.resources.cpu.cpus = "1"
    old = Release.of("containerd", "1.7.0").understood(wanted)
    assert old.linux.resources.cpu.cpus == "1"
    assert not (old.args)
    assert not (old.rlimits)
    assert not (old.linux.HasField("oom_score_adj"))
    assert not old.linux.resources.HasField("pids")
    middle = Release.of("containerd", "2.1.9").understood(wanted)
    assert middle.linux.HasField("oom_score_adj")
    assert not middle.linux.HasField("scheduler")
    assert Release.of("containerd", "2.3.0").understood(wanted) == wanted
