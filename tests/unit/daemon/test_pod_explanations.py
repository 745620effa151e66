"""What the daemon writes to its pods: the lines of `explain`, seldom, and to none of another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import (
    CONFLICT,
    FORBIDDEN,
    INTERNAL_SERVER_ERROR,
    NOT_FOUND,
    UNPROCESSABLE_ENTITY,
)
from pathlib import Path
from typing import Any

import pytest

from nri_policy.daemon.pod_explanations import (
    BURST,
    INTERVAL,
    MAX_TEXT,
    PAUSE,
    SETTLE,
    PodExplanations,
)
from nri_policy.engine.event import PodStopped, Reconfigured
from nri_policy.engine.grant import Decision
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client, Object, ObjectKind
from nri_policy.kube.errors import APIError
from nri_policy.kube.why import WHY
from tests.support import nodes
from tests.support.daemon import Served, pod, served

ON: dict[str, Any] = {"podExplanations": True}


class Cluster(Client):
    """An API server that takes patches of pods, or answers with an error."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str | None]] = []  # namespace/name, and the text
        self.uids: list[str] = []
        self.error = 0

    async def merge(
        self,
        kind: ObjectKind,
        name: str,
        patch: Object,
        *,
        namespace: str = "",
        part: str = "",
        by_key: bool = False,
    ) -> Object:
        assert (kind.plural, part, by_key) == ("pods", "", False)
        if self.error:
            raise APIError("it says no", code=self.error)
        assert patch.keys() == {"metadata"}
        assert patch["metadata"].keys() == {"uid", "annotations"}
        assert patch["metadata"]["annotations"].keys() == {WHY}
        self.written.append((f"{namespace}/{name}", patch["metadata"]["annotations"][WHY]))
        self.uids.append(patch["metadata"]["uid"])
        return {}

    @property
    def latest(self) -> dict[str, str | None]:
        return dict(self.written)


class Writer:
    """A node whose pods are explained, on a clock of its own."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self.cluster = Cluster()
        self.time = 0.0
        daemon = node.daemon
        self.explanations = PodExplanations(
            self.cluster,
            daemon.node,
            daemon._decision_log,
            clock=Clock(now=lambda: self.time),
            delay=lambda failures: 2.0**failures,
        )
        daemon.node.add_observers(self.explanations.observe)

    async def pass_time(self, seconds: float) -> int:
        """Let time pass, and return how many writes there were in it."""
        self.node.daemon.node.catch_up()
        before, end = len(self.cluster.written), self.time + seconds
        while True:
            wait = await self.explanations.step()
            if wait > 0:
                if self.time + wait > end:
                    break
                self.time += wait
        self.time = end
        return len(self.cluster.written) - before


@asynccontextmanager
async def writing(folder: Path, **spec: Any) -> AsyncIterator[Writer]:
    spec = {**ON, **spec}
    async with served(folder, nodes.SMALL, **spec) as node:
        yield Writer(node)


async def test_a_pod_has_the_lines_on_each_of_its_containers(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(pod("own", "2"))
        assert await them.pass_time(SETTLE - 1) == 0, "more containers may come"
        assert await them.pass_time(1) == 1
        assert them.cluster.latest == {
            "default/own": (
                "main: placed on NUMA node #1\n"
                "  CPUs: 4-5, exclusive, 1 core on NUMA node #1\n"
                "  memory: node 1, dram\n"
                "  asked: 2 CPUs → got 2 exclusive\n"
                "  quota: none (exclusive)\n"
                "  why here: NUMA nodes #1, #2 and #3 are equally good, and the lowest number wins"
            )
        }
        (made,) = them.node.runtime.pods
        assert them.cluster.uids == [made.manifest.metadata.uid]


async def test_a_refusal_is_explained(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        assert await them.node.start(pod("large", "99"))
        assert await them.pass_time(SETTLE) == 1
        text = them.cluster.latest["default/large"]
        assert text is not None
        assert text.startswith("main: no pool has room for 99 exclusive CPUs")


async def test_containers_of_other_namespaces_are_not_named(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        tenants = [pod(f"secret{n}", "100m", namespace="tenant") for n in range(8)]
        await them.node.start(*tenants, pod("mine", "100m"), pod("ours", "100m"))
        await them.pass_time(10 * PAUSE)
        texts = them.cluster.latest
        assert len(texts) == 10
        for name in ("default/mine", "default/ours"):
            assert "secret" not in str(texts[name])
        assert any("shared with" in str(each) for each in texts.values())
        for n in range(8):
            assert "default/" not in str(texts[f"tenant/secret{n}"])


async def test_unpinned_containers_of_other_namespaces_are_counted(tmp_path: Path) -> None:
    keep = {"cpu.preserve.resource-policy.nri.io/pod": "true"}
    async with writing(tmp_path) as them:
        free = pod("secret", "1", namespace="tenant")
        free["metadata"]["annotations"] = keep
        await them.node.start(free, pod("own", "2"))
        await them.pass_time(PAUSE)
        text = str(them.cluster.latest["default/own"])
        assert "secret" not in text
        assert "not alone: 1 container not pinned" in text


async def test_what_others_change_is_written_seldom(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(pod("shares", "100m"))
        await them.pass_time(SETTLE)
        changed = 0
        for n in range(6):
            await them.node.start(pod(f"own{n}", "2"))
            await them.pass_time(SETTLE)
            changed += [name for name, _ in them.cluster.written].count("default/shares") - 1
        assert changed == 0
        await them.pass_time(PAUSE)
        names = [name for name, _ in them.cluster.written]
        assert names.count("default/shares") == 2
        assert "shared with" in str(them.cluster.latest["default/shares"])


async def test_an_equal_text_is_not_written_again(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(pod("own", "2"))
        assert await them.pass_time(SETTLE) == 1
        settings = nodes.settings(**ON, audit="off")
        await them.node.daemon.events.reconfigure(settings=settings)
        assert await them.pass_time(2 * PAUSE) == 0


async def test_writes_are_bounded_and_those_of_new_pods_come_first(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(*(pod(f"p{n}", "10m") for n in range(BURST + 5)))
        assert await them.pass_time(SETTLE) == BURST
        assert await them.pass_time(INTERVAL) == 1
        assert await them.pass_time(4 * INTERVAL) == 4
        await them.pass_time(PAUSE)
        written = len(them.cluster.written)
        await them.node.start(pod("own", "2"), pod("new", "10m"))
        await them.pass_time(SETTLE)
        first = {name for name, _ in them.cluster.written[written : written + 2]}
        assert first == {"default/own", "default/new"}
        assert len(them.cluster.written) > written + 2, "others share fewer CPUs now"


async def test_pods_that_are_gone_are_dropped(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(pod("gone", "1"), pod("there", "1"))
        (gone,) = (p for p in them.node.runtime.pods if p.manifest.metadata.name == "gone")
        them.explanations.observe(
            PodStopped(pod_id=gone.id), Decision(), them.node.daemon.node.view
        )
        await them.pass_time(SETTLE)
        assert [*them.cluster.latest] == ["default/there"]


@pytest.mark.parametrize("code", [NOT_FOUND, CONFLICT, UNPROCESSABLE_ENTITY])
async def test_a_pod_that_the_server_does_not_have_any_more_is_not_tried_again(
    tmp_path: Path, code: int
) -> None:
    async with writing(tmp_path) as them:
        them.cluster.error = code
        await them.node.start(pod("own", "2"))
        await them.pass_time(SETTLE)
        them.cluster.error = 0
        assert await them.pass_time(PAUSE) == 0
        assert [*them.explanations.problems()] == []


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(FORBIDDEN, "configs/kustomize/explanations"), (INTERNAL_SERVER_ERROR, ""), (0, "")],
)
async def test_a_write_that_fails_is_tried_again_and_told(
    tmp_path: Path, code: int, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing(tmp_path) as them:
        them.cluster.error = code or 1
        await them.node.start(pod("own", "2"))
        await them.pass_time(100)
        (problem,) = them.explanations.problems()
        assert problem.startswith("podExplanations: it says no")
        assert remedy in problem
        logged = [each for each in caplog.records if each.msg == "explanation-not-written"]
        assert len(logged) == 1, "once, however often it fails"
        them.cluster.error = 0
        assert await them.pass_time(200) == 1
        assert [*them.explanations.problems()] == []


async def test_the_annotations_go_with_the_setting(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        await them.node.start(pod("own", "2"), pod("two", "2"))
        await them.pass_time(SETTLE)
        await them.node.daemon.events.reconfigure(settings=nodes.settings())
        assert await them.pass_time(SETTLE) == 2
        assert them.cluster.latest == {"default/own": None, "default/two": None}
        await them.node.start(pod("three", "2"))
        assert await them.pass_time(PAUSE) == 0
        await them.node.daemon.events.reconfigure(settings=nodes.settings(**ON))
        assert await them.pass_time(SETTLE) == 3


async def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    async with writing(tmp_path, podExplanations=False) as them:
        await them.node.start(pod("own", "2"))
        event = Reconfigured(settings=nodes.settings())
        them.explanations.observe(event, Decision(), them.node.daemon.node.view)
        assert await them.pass_time(PAUSE) == 0


async def test_a_daemon_without_a_cluster_says_so(tmp_path: Path) -> None:
    async with served(tmp_path, podExplanations=True) as node:
        (problem,) = node.daemon.pod_explanations.problems()
        assert "no cluster is known" in problem
        explanations = node.daemon.pod_explanations
        await node.start(pod("own", "2"))
        node.daemon.node.catch_up()
        assert explanations._pending == {}, "nothing would ever be taken out"
        assert await explanations.step() == float("inf")


async def test_a_long_text_is_cut(tmp_path: Path) -> None:
    async with writing(tmp_path) as them:
        many = pod("many", "10m")
        (one,) = many["spec"]["containers"]
        many["spec"]["containers"] = [{**one, "name": f"c{n}"} for n in range(60)]
        await them.node.start(many)
        await them.pass_time(PAUSE)
        text = str(them.cluster.latest["default/many"])
        assert (len(text), text[-1]) == (MAX_TEXT, "…")
