"""What goes wrong with one group, or with one object, is its own: all others go on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from http.client import CONFLICT, FORBIDDEN, INTERNAL_SERVER_ERROR, UNPROCESSABLE_ENTITY
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.groups.writes import CreateGroup, Notice, OpenGate, Write
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.cluster.workloads.membership import MAX_NAME, object_name
from tests.support.cluster_api import ClusterAPI
from tests.support.placement_world import CPUS, OTHER, Play
from tests.unit.cluster.numa.test_extender import replica
from tests.unit.cluster.service.test_groups_service import gone, job_of_three
from tests.unit.cluster.written import pod_spec

GATE, RACK = "placement.nri/group", "example.com/rack"
NAMES = ["My_Group", "a" * 300, "..", "Grüße", "a\nb", "x/y"]


def fail_for(play: Play, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine end in an error of its own where it is to place that group."""
    place = play.controller.engine.place

    def failing(group: PlacementGroup, *more: Any, **options: Any) -> GroupStatus:
        if group.name == name:
            raise ZeroDivisionError("as the test wants it")
        return place(group, *more, **options)

    monkeypatch.setattr(play.controller.engine, "place", failing)


async def _put_alone(api: ClusterAPI) -> None:
    """Create a pod that is a group by itself."""
    spec = {"containers": [{"name": "c"}], "schedulingGates": [{"name": GATE}]}
    metadata = {"name": "alone", "namespace": "default", "uid": "ua"}
    await api.put("pods", {"metadata": metadata, "spec": spec})


def test_no_node_is_ready_and_then_all_are_again() -> None:
    play = Play(failure={"policy": "PodTermination", "failFast": False})
    world = play.world
    world.submit("j", 4, 1, RACK)
    play.rest()
    nodes = [*world.objects["nodes"].values()]
    for ready in (False, True):
        for item in nodes:
            item["status"]["conditions"][0]["status"] = "True" if ready else "Unknown"
            world.put("nodes", item)
        for item in world.pods_of("j").values():
            if not ready:
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                world.put("pods", item)
        world.submit("next" if ready else "waits", 2, 1, RACK)
        play.rest()
        status = world.group("job-j").status
        if not ready:
            assert status.state == "Degraded"
            assert status.message == f"no topology domains at level: {RACK}"
            assert world.group("job-waits").status.message == status.message
    status = world.group("job-j").status
    assert (status.state, status.message) == ("Running", "")
    assert world.let_go("next") == world.let_go("waits") == (2, 2)
    assert not play.controller.errors


@pytest.mark.parametrize("placed", [False, True])
def test_an_error_about_one_group_is_said_of_it_and_stops_no_other(
    placed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it placed for the first time, or its lost pods anew."""
    play = Play(failure={"policy": "PodTermination", "failFast": False})
    world = play.world
    with monkeypatch.context() as patched:
        if not placed:
            fail_for(play, "job-bad", patched)
        world.submit("bad", 2, 2, RACK)
        play.rest()
        if placed:
            fail_for(play, "job-bad", patched)
            world.delete("nodes", world.pods_of("bad")["bad-0"]["spec"]["nodeName"])
            play.rest()
        world.submit("good", 2, 1, RACK)
        play.rest()
        assert world.let_go("good") == (2, 2)
        status = world.group("job-bad").status
        (condition,) = status.conditions
        text = "as the test wants it"
        assert (condition.type, condition.status) == ("InternalError", "True")
        assert (condition.reason, condition.message) == ("ZeroDivisionError", text)
        assert text in status.message
        assert bool(status.assignments) == placed
        assert ("job-bad", "InternalError") in world.events
        (record,) = [each for each in caplog.records if each.message == "group-failed"]
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert play.controller.errors == 1
        play.now += 0.9
        play.controller.queue.note_change()
        play.rest()
        assert play.controller.errors == 1  # it is left alone for a while
    play.now += 0.2
    play.rest()
    status = world.group("job-bad").status
    assert not status.conditions
    assert status.assignments
    assert status.message == ""


def test_a_group_that_cannot_even_be_marked_stops_no_other_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it was promised cannot be taken back from the engine, either."""
    play = Play()
    world, engine = play.world, play.controller.engine
    world.submit("bad", 2, 1, RACK)
    play.listen()
    with monkeypatch.context() as patched:
        fail_for(play, "job-bad", patched)
        set_group = engine.state.set_group

        def failing(group: PlacementGroup) -> None:
            if group.name == "job-bad" and failed:
                raise ZeroDivisionError
            set_group(group)

        place = engine.place
        failed: list[str] = []

        def note(group: PlacementGroup, *more: Any, **given: Any) -> GroupStatus:
            failed.extend(["yes"] * (group.name == "job-bad"))
            return place(group, *more, **given)

        patched.setattr(engine, "place", note)
        patched.setattr(engine.state, "set_group", failing)
        world.submit("good", 2, 1, RACK)
        play.rest()
        assert world.let_go("good") == (2, 2)
        said = [each.message for each in caplog.records if each.exc_info is not None]
        assert said == ["group-failed", "group-not-marked"]
        assert play.controller.errors == 2
    play.now += 1.0
    play.rest()
    assert world.let_go("bad") == (2, 2)


def refusing(kind: type[Write], name: str, tries: list[Write]) -> Callable[[Write], str]:
    """Refuse writes of a kind about one group or pod, and note them."""

    def refuse(write: Write) -> str:
        about = write.group.name if isinstance(write, CreateGroup) else ""
        about = write.opening.pod.name if isinstance(write, OpenGate) else about
        if isinstance(write, kind) and about == name:
            tries.append(write)
            return "403: the quota is used up"
        return ""

    return refuse


def test_a_group_that_may_not_be_created_is_tried_again_later_and_later() -> None:
    play = Play()
    tries: list[Write] = []
    play.world.refuse = refusing(CreateGroup, "job-j", tries)
    play.world.submit("j", 2, 1, RACK)
    play.world.submit("good", 2, 1, RACK)
    play.rest()
    assert play.world.let_go("good") == (2, 2)
    assert len(tries) == 1
    for seconds in range(60):
        play.now += 1.0
        play.rest()
        assert len(tries) <= 2 + seconds // 2
    assert 5 <= len(tries) <= 7
    assert play.world.events.count(("j-0", "Refused")) == 1
    assert play.notices["j-0"] == "403: the quota is used up"
    play.world.refuse = lambda _write: ""
    play.now += 30.0
    play.rest()
    assert play.world.let_go("j") == (2, 2)


def test_a_pod_that_may_not_be_changed_is_told_and_holds_no_other_up() -> None:
    play = Play()
    tries: list[Write] = []
    play.world.refuse = refusing(OpenGate, "j-1", tries)
    play.world.submit("j", 3, 1, RACK)
    play.rest()
    assert play.world.let_go("j") == (2, 3)
    play.rest()
    assert len(tries) == 1
    assert play.world.events.count(("j-1", "Refused")) == 1
    play.world.refuse = lambda _write: ""
    play.now += 1.0
    play.rest()
    assert play.world.let_go("j") == (3, 3)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_group_is_that_of_an_object(name: str) -> None:
    play = Play()
    for at in range(2):
        play.world.submit(f"j{at}", 1, 1, RACK)
        (item,) = play.world.pods_of(f"j{at}").values()
        item["metadata"]["annotations"] = {
            "placement.nri/group": name,
            "placement.nri/group-size": "2",
            "kueue.x-k8s.io/podset-required-topology": RACK,
        }
        play.world.put("pods", item)
    play.rest()
    assert play.world.let_go("j0") == play.world.let_go("j1") == (1, 1)
    (group,) = play.world.objects["groups"]
    assert play.world.group(group).status.state == "Running"
    assert group == object_name(name) == object_name(group) != name
    assert len(group) <= MAX_NAME


def test_names_that_objects_have_stay_and_others_do_not_fall_together() -> None:
    for name in ("a", "job-a", "a.b-c.d", "a" * 253):
        assert object_name(name) == name
    made = {object_name(name) for name in (*NAMES, "my_group", "My-Group", "a" * 301)}
    assert len(made) == len(NAMES) + 3


def test_a_name_that_is_empty_is_refused() -> None:
    play = Play()
    play.world.submit("j", 1, 1, RACK)
    (item,) = play.world.pods_of("j").values()
    item["metadata"]["annotations"] = {"placement.nri/group": ""}
    play.world.put("pods", item)
    play.rest()
    assert play.world.events == [("j-0", "Malformed")]
    assert (
        play.notices["j-0"] == "metadata.annotations.placement.nri/group: '' is no name of a group"
    )


@pytest.mark.parametrize("code", [FORBIDDEN, UNPROCESSABLE_ENTITY, INTERNAL_SERVER_ERROR])
def test_who_is_refused_holds_nobody_else_up(tmp_path: Path, code: int) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            api.refuse = lambda method, path: code * (method == "PATCH" and path.endswith("/j-1"))
            async with replica(api, groups=True) as at:
                await at.until(lambda: len(gone(api)) == 2)
                writer = at.service.writer
                assert writer is not None
                await at.until(lambda: writer.written["OpenGate", "failed"] >= 1)
                await _put_alone(api)
                await at.until(lambda: "default/alone" in gone(api))
                assert "default/j-1" not in gone(api)

    asyncio.run(play())


def test_a_group_is_created_although_its_quota_changes_at_the_same_time(tmp_path: Path) -> None:
    """The API server answers with a conflict then, and there is no object."""

    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            refused = 0

            def refuse(method: str, path: str) -> int:
                nonlocal refused
                if method == "POST" and path.endswith("/placementgroups") and not refused:
                    refused += 1
                    return CONFLICT
                return 0

            api.refuse = refuse
            async with replica(api, groups=True) as at:
                await at.until(lambda: len(gone(api)) == 3)
            assert refused

    asyncio.run(play())


def test_who_is_never_answered_holds_nobody_else_up(tmp_path: Path) -> None:
    """A webhook for one namespace may take as long as it likes."""

    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            never = asyncio.Event()
            answer = api._change

            async def slow(method: str, kind: str, key: str, *more: Any) -> Any:
                if method == "PATCH" and key == "default/j-1":
                    await never.wait()
                return await answer(method, kind, key, *more)

            api._change = slow  # type: ignore[assignment, method-assign]
            async with replica(api, groups=True) as at:
                await at.until(lambda: len(gone(api)) == 2)
                await _put_alone(api)
                await at.until(lambda: "default/alone" in gone(api))
                assert "default/j-1" not in gone(api)

    asyncio.run(play())


def test_an_error_about_an_object_or_a_request_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api, replica(api, groups=True) as at:
            controller = at.service.controller
            assert controller is not None
            take = controller.set_job

            def failing(job: Any) -> None:
                if job.name == "bad":
                    raise ZeroDivisionError
                take(job)

            monkeypatch.setattr(controller, "set_job", failing)
            metadata = {"name": "bad", "namespace": "default"}
            await api.put("jobs", {"metadata": metadata, "spec": {"parallelism": 3}})
            await at.until(lambda: at.service.watch.errors == 1)
            await at.until(lambda: len(gone(api)) == 3)
            scheduler = await at.connect()
            pod = {"metadata": {"name": "web", "namespace": "default"}, "spec": {}}
            asked = {"Pod": pod, "NodeNames": ["h1"]}
            with monkeypatch.context() as patched:
                patched.setattr(at.service.zones.fits, "ask", lambda _: 1 / 0)
                assert (await scheduler.send("/filter", json.dumps(asked).encode()))[
                    0
                ] == INTERNAL_SERVER_ERROR
            assert (await scheduler.ask("/filter", asked))["NodeNames"] == ["h1"]
            _, text = await scheduler.get("/metrics")
            assert "nri_policy_cluster_internal_errors_total 1.0" in text
            assert 'nri_policy_cluster_requests_total{status="500",verb="filter"} 1.0' in text

    asyncio.run(play())
    failed = [each for each in caplog.records if each.exc_info is not None]
    assert [each.message for each in failed] == ["object-failed", "request-failed"]


CPU = {"requests": {"cpu": "1"}}
PORTS = [{"hostPort": 80, "containerPort": 80}]
TERM = {"labelSelector": {}, "topologyKey": "example.com/rack"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"containers": [{"name": "c", "ports": PORTS, "resources": CPU}]},
            (
                "a host port; here that means at most one pod on each host, and pods of other"
                " groups are not counted"
            ),
        ),
        (
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
                }
            },
            (
                "pod anti-affinity to its own kind over example.com/rack;"
                " here that means at most one pod in each example.com/rack, and pods of other"
                " groups are not counted"
            ),
        ),
    ],
)
def test_what_only_kube_scheduler_can_judge_is_said_until_the_pods_run(
    spec: Any, message: str
) -> None:
    play = Play()
    play.world.submit("web", 1, 1, "example.com/rack", **spec)
    play.rest(schedule=False)
    text = f"only kube-scheduler can judge {message}"
    assert play.world.group("job-web").status.message == text
    play.rest()
    status = play.world.group("job-web").status
    assert (status.state, status.message) == ("Running", "")


def labelled(play: Play, name: str, size: str, cpu: int = 1) -> None:
    """A gated pod that names the group "g"."""
    labels = {"placement.nri/group": "g", "placement.nri/group-size": size}
    spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
    play.world.put("pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})


def test_a_refused_write_of_a_pod_with_its_groups_name_is_said_of_the_pod() -> None:
    play = Play()
    labelled(play, "g", "1")
    play.world.refuse = lambda write: "a policy" if isinstance(write, OpenGate) else ""
    for _ in range(3):
        play.listen()
        play.step()
    (notice,) = [each for each in play.controller.step() if isinstance(each, Notice)]
    assert (notice.about[1], notice.pod, notice.message) == ("g", True, "a policy")


def test_what_is_wrong_with_a_pod_is_not_taken_for_the_problem_of_the_group_of_its_name() -> None:
    """The group waits, and says why once, whatever becomes of a pod that is called like it."""
    play = Play()
    labelled(play, "a", "1", cpu=CPUS + 1)
    play.rest()
    labelled(play, "g", "many")
    play.rest()
    play.world.delete("pods", "g")
    play.controller.queue.note_new_cluster()
    play.rest()
    assert Counter(play.world.events)["g", "Unplaceable"] == 1
    assert Counter(play.world.events)["g", "Malformed"] == 1
