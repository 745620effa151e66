from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.settings import CPUQuantity, ReloadResult, Settings, SettingsError
from nri_policy.settings_sources.cluster_settings import (
    PATIENCE,
    ClusterError,
    ClusterSettingsSource,
    NoKindError,
)
from nri_policy.settings_sources.policy_objects import PolicyObject
from nri_policy.settings_sources.settings_file import SettingsFile
from tests.support import nodes
from tests.support.clock import SleepingClock

SPEC = {"reservedResources": {"cpu": 2}}


def policy(name: str, generation: int = 1, cpu: int = 2, **more: Any) -> PolicyObject:
    spec = {"reservedResources": {"cpu": cpu}}
    return PolicyObject(name=name, generation=generation, spec=spec, **more)


class Cluster:
    """Objects, and a daemon that loads whenever it is told to."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, PolicyObject] = {}
        self.label = ""
        self.down = False
        self.kind = True
        self.unknown: set[str] = set()  # objects that cannot be read
        self.read_only: set[str] = set()  # objects of whose status nothing can be written
        self.statuses: list[tuple[str, str, Mapping[str, Any] | None]] = []
        self.loads: list[Settings] = []
        self.followers: dict[str, Callable[[PolicyObject | None], None]] = {}
        self.kept = folder / "settings.json"
        self.naps: list[tuple[float, asyncio.Event]] = []
        self.source = self.make()

    def make(self) -> ClusterSettingsSource:
        return ClusterSettingsSource(
            self,
            "a",
            kept=self.kept,
            otherwise=nodes.settings,
            changed=lambda: self.loads.append(self.source.load()),
            clock=SleepingClock(sleep=self.sleep),
            delay=lambda failures: 1.0 + failures,
        )

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run())
        await settle()
        yield
        task.cancel()
        await asyncio.wait({task})

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.naps.append((seconds, over))
        await over.wait()

    async def wake(self) -> None:
        """End all sleeps."""
        naps, self.naps = self.naps, []
        for _, over in naps:
            over.set()
        await settle()

    async def put(self, new: PolicyObject) -> None:
        self.objects[new.name] = new
        if new.name in self.followers:
            self.followers[new.name](new)
        await settle()

    async def delete(self, name: str) -> None:
        del self.objects[name]
        self.followers[name](None)
        await settle()

    def check(self) -> None:
        if self.down:
            raise ClusterError("connection refused")

    async def group(self, node: str) -> str:
        assert node == "a"
        self.check()
        return self.label

    async def follow(self, name: str, say: Callable[[PolicyObject | None], None]) -> None:
        self.check()
        if not self.kind:
            raise NoKindError("no such kind")
        if name in self.unknown:
            raise ClusterError("forbidden")
        say(self.objects.get(name))
        self.followers[name] = say
        try:
            await asyncio.Event().wait()
        finally:
            del self.followers[name]

    async def set_status(self, name: str, node: str, status: Mapping[str, Any] | None) -> None:
        self.check()
        if name in self.read_only:
            raise ClusterError("forbidden")
        self.statuses.append((name, node, status))


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def reserved(settings: Settings) -> int:
    assert isinstance(settings.reserved.cpu, CPUQuantity)
    return settings.reserved.cpu.milli_cpu // 1000


def pinning(settings: Settings) -> tuple[bool, bool]:
    return settings.pin_cpu, settings.pin_memory


async def test_without_objects_the_files_settings_count(cluster: Cluster) -> None:
    async with cluster.followed():
        assert [each.origin for each in cluster.loads] == ["test"]
        assert cluster.source.load().origin == "test"


async def test_nothing_is_pinned_before_the_cluster_was_heard_of(cluster: Cluster) -> None:
    cluster.down = True
    async with cluster.followed():
        first = cluster.source.load()
        assert pinning(first) == (False, False)
        assert first.origin == "test, without pinning until the cluster answers"
        assert "--config-namespace=" in first.notices[-1]
        cluster.down = False
        await cluster.wake()
        assert [pinning(each) for each in cluster.loads] == [(True, True)], "it has none"
    cluster.down = True
    cluster.source = cluster.make()
    async with cluster.followed():
        assert pinning(cluster.source.load()) == (True, True), "as before the restart"


async def test_as_long_as_one_object_is_not_known_nothing_is_pinned(cluster: Cluster) -> None:
    cluster.unknown = {"node.a"}
    cluster.objects["default"] = policy("default")
    async with cluster.followed():
        assert pinning(cluster.source.load()) == (False, False)
        assert cluster.source.load().origin.startswith("test")


async def test_a_cluster_without_the_kind_has_no_settings(cluster: Cluster) -> None:
    cluster.kind = False
    async with cluster.followed():
        assert pinning(cluster.source.load()) == (True, True)
        assert [each.origin for each in cluster.loads] == ["test"]


async def test_a_kind_that_goes_takes_no_settings_away(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("default", cpu=3))
    cluster.kind = False
    cluster.source = cluster.make()
    async with cluster.followed():
        await cluster.wake()
        assert reserved(cluster.source.load()) == 3


async def test_an_object_that_comes_changes_and_goes_is_followed(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("default", cpu=2))
        await cluster.put(policy("node.a", cpu=3))
        await cluster.put(policy("default", 2, cpu=4))
        await cluster.put(policy("node.a", 2, cpu=5))
        await cluster.delete("node.a")
        await cluster.delete("default")
    assert [each.origin for each in cluster.loads] == [
        "test",
        "TopologyAwarePolicy default",
        "TopologyAwarePolicy node.a",
        "TopologyAwarePolicy node.a",
        "TopologyAwarePolicy default",
        "test",
    ]
    assert [reserved(each) for each in cluster.loads[1:-1]] == [2, 3, 5, 4]


async def test_the_group_is_what_the_nodes_label_says_now(cluster: Cluster) -> None:
    cluster.objects = {each.name: each for each in (policy("group.x"), policy("group.y", cpu=3))}
    async with cluster.followed():
        cluster.loads.clear()
        cluster.label = "x"
        await cluster.wake()
        cluster.label = "y"
        await cluster.wake()
        assert {*cluster.followers} == {"node.a", "group.y", "default"}
        cluster.label = ""
        await cluster.wake()
    assert [each.origin.split()[-1] for each in cluster.loads] == ["group.x", "group.y", "test"]


async def test_an_outage_changes_nothing_and_ends_by_itself(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.put(policy("default"))
    cluster.down = True
    async with cluster.followed():
        await cluster.wake()
        await cluster.wake()
        assert cluster.loads == []
        assert caplog.text.count("event=cluster-settings-unknown") == 3, "once each"
        cluster.down = False
        await cluster.wake()
        assert [reserved(each) for each in cluster.loads] == [2]


async def test_what_counted_counts_after_a_restart_without_the_cluster(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("node.a", 7, cpu=3))
    assert cluster.kept.stat().st_mode & 0o777 == 0o600
    cluster.down = True
    cluster.source = cluster.make()
    async with cluster.followed():
        assert reserved(cluster.source.load()) == 3
    cluster.down = False
    del cluster.objects["node.a"]
    cluster.source = cluster.make()
    async with cluster.followed():
        assert cluster.source.load().origin == "test"
    assert json.loads(cluster.kept.read_text()) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', "[" * 100_000])
async def test_a_kept_file_that_makes_no_sense_is_none(text: str, cluster: Cluster) -> None:
    cluster.kept.write_text(text)
    assert pinning(cluster.make().load()) == (False, False)


async def test_a_start_waits_until_everything_was_asked_but_not_for_long(cluster: Cluster) -> None:
    waiting = asyncio.create_task(cluster.source.wait_answered())
    await settle()
    assert not waiting.done()
    cluster.down = True
    async with cluster.followed():
        assert waiting.done(), "who cannot be asked is not waited for"
    cluster.source = cluster.make()
    cluster.naps.clear()
    waiting = asyncio.create_task(cluster.source.wait_answered())
    await settle()
    assert [seconds for seconds, _ in cluster.naps] == [PATIENCE]
    await cluster.wake()
    assert waiting.done()


async def test_the_outcome_is_written_to_the_object_that_was_loaded(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("default", 4))
        outcome = ReloadResult(accepted=False, origin="", reason="no room", time=1_800_000_000.0)
        cluster.source.report(outcome)
        await settle()
    assert cluster.statuses == [
        (
            "default",
            "a",
            {
                "status": "Failure",
                "generation": 4,
                "errors": "no room",
                "timestamp": "2027-01-15T08:00:00Z",
            },
        )
    ]


async def test_who_ends_waits_until_everything_is_said(cluster: Cluster) -> None:
    await cluster.source.wait_written()
    async with cluster.followed():
        await cluster.put(policy("default"))
        cluster.source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        await cluster.source.wait_written()
        assert len(cluster.statuses) == 1
        cluster.down = True
        cluster.source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        waiting = asyncio.create_task(cluster.source.wait_written())
        await settle()
        assert not waiting.done()
        await cluster.wake()
        assert waiting.done(), "but not for ever"


async def test_the_files_outcome_is_nobodys_status(cluster: Cluster) -> None:
    async with cluster.followed():
        cluster.source.load()
        cluster.source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        await settle()
    assert cluster.statuses == []


async def test_a_status_is_written_when_the_cluster_is_back_and_only_the_latest(
    cluster: Cluster,
) -> None:
    async with cluster.followed():
        await cluster.put(policy("default"))
        cluster.down = True
        for reason in ("one", "two", ""):
            cluster.source.report(
                ReloadResult(accepted=not reason, origin="", reason=reason, time=0.0)
            )
            await settle()
        await cluster.wake()
        cluster.down = False
        await cluster.wake()
    assert [status and status["status"] for _, _, status in cluster.statuses] == ["Success"]


async def test_a_status_on_an_object_that_counts_no_more_is_taken_back(cluster: Cluster) -> None:
    await cluster.put(policy("default", nodes=frozenset({"a", "b"})))
    await cluster.put(policy("node.a"))
    async with cluster.followed():
        pass
    assert cluster.statuses == [("default", "a", None)]


async def test_an_object_that_was_made_anew_gets_its_status_again(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("default"))
        cluster.source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        await settle()
        await cluster.put(policy("default", nodes=frozenset({"a"})))
        assert len(cluster.statuses) == 1
        await cluster.put(policy("default"))
    assert len(cluster.statuses) == 2
    assert len(cluster.loads) == 2


async def test_a_bad_object_is_an_error_that_names_it(cluster: Cluster) -> None:
    async with cluster.followed():
        with pytest.raises(SettingsError, match=r"TopologyAwarePolicy default: .*pinCPUs"):
            await cluster.put(
                PolicyObject(name="default", generation=1, spec={**SPEC, "pinCPUs": 1})
            )


async def test_what_is_kept_is_the_object_as_it_is(cluster: Cluster) -> None:
    async with cluster.followed():
        await cluster.put(policy("default", 9))
    assert json.loads(cluster.kept.read_text()) == {
        "name": "default",
        "generation": 9,
        "spec": SPEC,
    }


async def test_what_cannot_be_kept_counts_all_the_same(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.label = "gpu"
    cluster.objects["group.gpu"] = policy("group.gpu", cpu=5)
    async with cluster.followed():
        assert [reserved(each) for each in cluster.loads] == [5]
        cluster.kept.unlink()
        cluster.kept.mkdir()  # nothing can take its place, and it cannot be unlinked
        cluster.label = ""
        await cluster.wake()
        assert len(cluster.loads) == 2, "the file's settings count again"
        await cluster.put(policy("default", cpu=3))
        assert reserved(cluster.loads[-1]) == 3
    assert caplog.text.count("event=settings-not-saved") == 2


async def test_an_object_whose_status_cannot_be_written_does_not_keep_the_others_waiting(
    cluster: Cluster,
) -> None:
    cluster.read_only = {"default"}
    async with cluster.followed():
        await cluster.put(policy("default", nodes=frozenset({"a"})))
        await cluster.put(policy("node.a"))
        cluster.source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        await settle()
        assert cluster.statuses == [], "what was said of the default one comes first"
        await cluster.wake()
        assert [name for name, _, _ in cluster.statuses] == ["node.a"]
        cluster.read_only = set()
        await cluster.wake()
        assert [(name, status is None) for name, _, status in cluster.statuses] == [
            ("node.a", False),
            ("default", True),
        ]


@pytest.mark.parametrize(
    ("down", "text"),
    [
        (False, "the cluster has no TopologyAwarePolicy object for node a either"),
        (True, "the cluster has not said which settings apply: connection refused"),
    ],
)
async def test_without_a_file_the_error_says_why_there_are_none_from_the_cluster(
    down: bool, text: str, cluster: Cluster, tmp_path: Path
) -> None:
    """As in nri-plugins' pod, which has no file."""
    source = ClusterSettingsSource(
        cluster,
        "a",
        kept=cluster.kept,
        otherwise=SettingsFile(tmp_path / "none.yaml").load,
        changed=lambda: None,
        clock=SleepingClock(sleep=cluster.sleep),
    )
    with pytest.raises(SettingsError, match="which settings apply: no answer within 2 s"):
        source.load()
    cluster.down = down
    following = asyncio.create_task(source.run())
    await settle()
    with pytest.raises(SettingsError) as refused:
        source.load()
    following.cancel()
    await asyncio.wait({following})
    missing, why = refused.value.problems
    assert "cannot be read" in str(missing)
    assert str(why) == text
