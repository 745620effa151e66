"""`nri-policy cluster simulate`: steps in, what became of groups out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.requests.group import PlacementGroup, hosts_of
from tests.unit.cli.test_cluster_questions import RACK, job, run, write
from tests.unit.cluster.written import group, node, pod_set

SPEC = "rack:2 host:2 cpu:4 memory:8Gi"


def play(
    folder: Path, *steps: Any, settings: Any = None, groups: Any = ()
) -> tuple[int, list[Any]]:
    """Return the exit code and, of each step, its groups' states and its problems.

    *settings* are of failures, and *groups* those of groups.
    """
    (folder / "scenario.yaml").write_text(json.dumps(steps))
    more = []
    if settings is not None or groups:
        levels = [RACK, "kubernetes.io/hostname"]
        spec = {
            "topologies": [{"levels": levels}],
            "failure": settings or {},
            "groups": dict(groups),
        }
        more = [
            "--settings",
            write(
                folder / "s.yaml",
                {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement", "spec": spec},
            ),
        ]
    scenario = str(folder / "scenario.yaml")
    code, text = run("simulate", scenario, "--steps", "--synthetic", SPEC, "-o", "json", *more)
    return code, json.loads(text)["steps"]


def states(played: list[Any]) -> list[list[tuple[str, dict[str, int]]]]:
    return [[(each["state"], each["domains"]) for each in step["groups"]] for step in played]


def test_a_group_waits_until_there_is_room(tmp_path: Path) -> None:
    write(tmp_path / "two.yaml", job("two", 8, required=RACK))
    code, played = play(
        tmp_path,
        {"apply": [job("one", 16), {"file": "two.yaml"}]},
        {"delete": ["one"]},
        {"expect": {"two": {"state": "Placed", "domains": {"rack-1": 8}}}},
    )
    assert code == 0
    both = {"rack-1": 8, "rack-2": 8}
    one = {"rack-1": 8}
    assert states(played) == [
        [("Placed", both), ("Waiting", {})],
        [("Placed", one), ("Ended", {})],
        [("Placed", one)],
    ]


def test_the_first_by_priority_gets_the_room(tmp_path: Path) -> None:
    low, high = (
        {"kind": "PlacementGroup"} | group(pod_set(16, cpu=1), name=name, priority=priority)
        for name, priority in (("low", 1), ("high", 2))
    )
    _, played = play(tmp_path, {"apply": [low, high]})
    assert [each["state"] for each in played[0]["groups"]] == ["Waiting", "Placed"]


def test_a_class_of_an_earlier_step_counts_and_one_that_is_not_known_has_a_note(
    tmp_path: Path,
) -> None:
    of_class = {"kind": "PriorityClass", "metadata": {"name": "gold"}, "value": 7}
    low, gold, other = job("low", 16), job("high", 16), job("other", 1)
    for each, name in ((gold, "gold"), (other, "silver")):
        each["spec"]["template"]["spec"]["priorityClassName"] = name
    steps = [{"apply": [of_class]}, {"apply": [low, gold]}, {"apply": [other]}]
    _, played = play(tmp_path, *steps)
    assert [each["state"] for each in played[1]["groups"]] == ["Waiting", "Placed"]
    note = "default/other: its PriorityClass 'silver' is not known, so priority 0 counts"
    assert [each["notes"] for each in played] == [[], [], [note]]


def ranked(name: str, pods: int, priority: int) -> Any:
    made = group(pod_set(pods, {"required": RACK}), name=name, priority=priority)
    return {"kind": "PlacementGroup", **made}


def test_a_group_leaves_for_one_of_higher_priority_if_the_settings_say_so(tmp_path: Path) -> None:
    """The youngest of the lowest priority, which waits then until there is room again."""
    full = {"apply": [ranked("c", 8, 1), ranked("b", 8, 1)]}
    steps = [full, {"apply": [ranked("same", 8, 1), ranked("urgent", 5, 9)]}, {"delete": ["c"]}]
    code, played = play(tmp_path, *steps, groups={"preemption": True})
    assert code == 0
    found = [{each["name"][8:]: each["state"] for each in step["groups"]} for step in played]
    assert found == [
        {"c": "Placed", "b": "Placed"},
        {"c": "Placed", "b": "Waiting", "same": "Waiting", "urgent": "Placed"},
        {"b": "Waiting", "same": "Placed", "urgent": "Placed", "c": "Ended"},
    ]
    changes = [{each["name"][8:]: each["change"] for each in step["groups"]} for step in played]
    assert changes[1]["b"] == "preempted by default/urgent"
    assert changes[2]["b"] in ("", "another message")
    off = play(tmp_path, *steps, groups={"preemption": False})[1]
    assert [each["state"] for each in off[1]["groups"]] == ["Placed", "Placed"] + 2 * ["Waiting"]


def test_a_job_that_was_preempted_runs_from_its_start(tmp_path: Path) -> None:
    jobs = [
        {"apply": [ranked(name, 8, 1)], "at": "0s", "for": "10m"} for name in ("first", "second")
    ]
    jobs.append({"apply": [ranked("urgent", 8, 2)], "at": "5m", "for": "1m"})
    settings = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "ClusterPlacement",
        "spec": {
            "topologies": [{"levels": [RACK, "kubernetes.io/hostname"]}],
            "groups": {"preemption": True},
        },
    }
    (tmp_path / "jobs.yaml").write_text(json.dumps(jobs))
    using = ("--settings", write(tmp_path / "s.yaml", settings), "--synthetic", SPEC)
    asked = ("simulate", "--workload", str(tmp_path / "jobs.yaml"), *using)
    figures = json.loads(run(*asked, "-o", "json")[1])["figures"]
    assert (figures["preempted"], figures["seconds"]) == (1, 16 * 60)
    assert "1 group preempted; attempts without room" in run(*asked)[1]


def test_pods_of_a_failed_node_are_placed_anew_in_their_rack(tmp_path: Path) -> None:
    code, played = play(tmp_path, {"apply": [job("j", 4, required=RACK)]}, {"fail": ["host-1-1"]})
    assert code == 0
    assert states(played)[1] == [("Placed", {"rack-1": 4})]


def test_a_group_that_is_scaled_keeps_its_places_and_gives_the_last_ones_back(
    tmp_path: Path,
) -> None:
    code, played = play(
        tmp_path,
        {"apply": [job("j", 2, required=RACK), job("other", 8, required=RACK)]},
        {"scale": {"j": 6}},
        {"scale": {"j": 10}},
        {"delete": ["other"]},
        {"scale": {"j": 3}},
        {"scale": {"j": 20}},
        {"scale": {"j": 8}},
    )
    assert code == 0
    changes = [step["groups"][0]["change"] for step in played]
    one = {"rack-1": 2}
    assert states(played)[0][0] == ("Placed", one)
    assert [each[0][1].get("rack-1") for each in states(played)] == [2, 6, 6, 6, 3, 3, 8], played
    assert changes[1] == "4 pods more"
    assert changes[4] == "3 pods fewer"
    assert "more pods cannot be placed" in played[2]["groups"][0]["message"]
    assert played[4]["groups"][0]["message"] == played[6]["groups"][0]["message"] == ""


def test_a_group_that_waits_is_scaled_to_what_fits(tmp_path: Path) -> None:
    slices = {"required": RACK, "slices": [{"level": RACK, "size": 2}]}
    sliced = {"kind": "PlacementGroup"} | group(pod_set(20, slices, cpu=1))
    both = {"kind": "PlacementGroup"} | group(
        pod_set(1, name="a", cpu=1), pod_set(1, name="b", cpu=1), name="both"
    )
    _, played = play(
        tmp_path,
        {"apply": [sliced, both]},
        {"scale": {"g": 6}},
        {"scale": {"both": {"b": 3}}},
    )
    found = [[each["state"] for each in step["groups"]] for step in played]
    assert found == [["Unplaceable", "Placed"], ["Placed", "Placed"], ["Placed", "Placed"]]
    assert [sum(each["domains"].values()) for each in played[2]["groups"]] == [6, 4]


@pytest.mark.parametrize(
    ("scaled", "error"),
    [
        ({"g": 3}, "3 pods are no whole number of slices of 2"),
        ({"g": -1}, "scale.g.main: -1 is not from 0"),
        ({"h": 2}, "there is no group 'h'"),
        ({"g": {"mian": 2}}, "scale.g: no pod set 'mian'; did you mean 'main'?"),
        ({"both": 2}, "scale.both: names none of the pod sets a, b"),
    ],
)
def test_a_group_is_not_scaled_to_what_cannot_be(tmp_path: Path, scaled: Any, error: str) -> None:
    slices = {"required": RACK, "slices": [{"level": RACK, "size": 2}]}
    groups = [group(pod_set(2, slices, cpu=1)), group(*(pod_set(1, name=n) for n in "ab"))]
    groups[1]["metadata"]["name"] = "both"
    applied = [{"kind": "PlacementGroup"} | each for each in groups]
    (tmp_path / "scenario.yaml").write_text(json.dumps([{"apply": applied}, {"scale": scaled}]))
    code, text = run("simulate", str(tmp_path / "scenario.yaml"), "--synthetic", SPEC)
    assert code == 2
    assert error in text


@pytest.mark.parametrize(
    ("fail_fast", "after"),
    [(True, ["Placed", "Waiting", "Placed"]), (False, ["Placed", "Degraded", "Placed"])],
)
def test_what_has_no_room_starts_again_or_stays_until_the_node_is_back(
    tmp_path: Path, fail_fast: bool, after: list[str]
) -> None:
    steps = [{"apply": [job("j", 8, required=RACK), job("other", 8, required=RACK)]}]
    steps += [{"fail": ["host-1-1"]}, {"recover": ["host-1-1"]}]
    _, played = play(tmp_path, *steps, settings={"failFast": fail_fast})
    assert [step["groups"][0]["state"] for step in played] == after
    assert played[1]["groups"][0]["message"]


def test_a_job_that_a_failed_node_ended_is_made_again_and_runs_from_its_start(
    tmp_path: Path,
) -> None:
    """As the Job's controller does: in another rack if there is room, or later."""
    first = {"at": "0s", "for": "10m", "apply": [job("j", 8, required=RACK)]}
    (tmp_path / "w.json").write_text(json.dumps([first, {"at": "5m", "fail": ["host-1-1"]}]))
    arguments = ("simulate", "--workload", str(tmp_path / "w.json"), "--synthetic", SPEC, "--steps")
    report = json.loads(run(*arguments, "-o", "json")[1])
    [group] = report["steps"][1]["groups"]
    assert (group["state"], group["domains"]) == ("Placed", {"rack-2": 8})
    assert group["change"] == "starts again: no room for 4 pods of host-1-1"
    assert (report["figures"]["seconds"], report["figures"]["lost"]) == (15 * 60, 1)


def test_a_node_may_have_30_seconds_to_come_back(tmp_path: Path) -> None:
    steps: list[Any] = [{"apply": [job("j", 8, required=RACK)]}, {"fail": ["host-1-1"]}]
    steps += [{"advance": "29s"}, {"advance": "1s"}]
    settings = {"policy": "Fixed30s", "failFast": False}
    _, played = play(tmp_path, *steps, settings=settings)
    assert [step["groups"][0]["state"] for step in played] == [*["Placed"] * 3, "Degraded"]


def test_what_is_not_as_expected_is_said(tmp_path: Path) -> None:
    expected = {"state": "Waiting", "message": "x", "domains": {"rack-2": 1}}
    code, played = play(tmp_path, {"apply": [job("j", 1)]}, {"expect": {"j": expected}})
    assert code == 1
    assert played[1]["problems"] == [
        "default/j is Placed, not Waiting",
        "default/j says ''",
        "default/j has {'rack-1': 1}, not {'rack-2': 1}",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1", "a scenario is a list of steps"),
        ("- {fail: [x], recover: [x]}", "step 1: has 2 of apply, delete, scale, fail"),
        ("- {advance: soon}", "step 1.advance: 'soon'"),
        ("- {fail: [host-1-3]}", "step 1: there is no node 'host-1-3'; did you mean 'host-"),
        ("- {delete: [x]}", "step 1: there is no group 'x'"),
        ("- apply: [{file: none.yaml}]", "none.yaml: No such file or directory"),
        ("- apply: [{kind: Jobb}]", "step 1: kind: 'Jobb' cannot be placed; did you mean 'Job'?"),
    ],
)
def test_what_is_wrong_with_a_scenario(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "scenario.yaml").write_text(text)
    code, said = run("simulate", str(tmp_path / "scenario.yaml"), "--synthetic", SPEC)
    assert code == 2
    assert error in said


def test_what_changed_in_a_step_is_marked(tmp_path: Path) -> None:
    steps = [{"apply": [job("a", 4), job("b", 1)]}, {"fail": ["host-1-1"]}]
    (tmp_path / "s.json").write_text(json.dumps(steps))
    arguments = ("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC, "--steps")
    lines = [" ".join(line.split()) for line in run(*arguments)[1].splitlines()]
    assert lines[4:6] == [
        "* default/a Placed rack-2: 4 4 pods moved from host-1-1 to host-2-1",
        "default/b Placed rack-1: 1",
    ]


def test_a_wrong_step_does_not_lose_what_was_before(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps([{"apply": [job("a", 1)]}, {"fail": ["x"]}]))
    code, text = run("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC)
    assert code == 2
    assert text.startswith("step 1: apply [a]\n* default/a  Placed")
    assert text.endswith("s.json: step 2: there is no node 'x'\n")


def test_a_page_plays_the_steps(tmp_path: Path) -> None:
    steps = [{"apply": [job("a", 4)]}, {"fail": ["host-1-1"]}, {"delete": ["a"]}]
    (tmp_path / "s.json").write_text(json.dumps(steps))
    text = run("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC, "-o", "html")[1]
    assert text.count('class="step"') == 3
    assert text.count("host-1-2: 100% of cpu") == 2, "in the second step, on screen and phone"
    assert text.count("not ready</title>") == 4, "from the second step on"


def test_a_step_shows_the_groups_that_changed(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(
        json.dumps([{"apply": [job("a", 1)]}, {"apply": [job("b", 1)]}])
    )
    _, text = run("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC, "-o", "json")
    assert [[each["name"] for each in step["groups"]] for step in json.loads(text)["steps"]] == [
        ["default/a"],
        ["default/b"],
    ]


WORKLOAD = [
    {"at": "0s", "for": "1h", "kind": "gang", "apply": [job("a", 8, required=RACK)]},
    {"at": "10m", "for": "1h", "kind": "gang", "apply": [job("b", 8, required=RACK)]},
    {"at": "20m", "for": "1h", "kind": "gang", "apply": [job("c", 8, required=RACK)]},
    {"at": "25m", "kind": "huge", "apply": [job("d", 9, required=RACK)]},
]


def test_a_workload_has_figures_of_what_came_and_went(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    arguments = ("simulate", "--workload", str(tmp_path / "w.json"), "--synthetic", SPEC)
    code, text = run(*arguments, "-o", "json")
    report = json.loads(text)
    gangs, huge = report["figures"]["kinds"]
    assert (code, report["steps"]) == (0, [])
    assert (gangs["kind"], gangs["jobs"], gangs["placed"]) == ("gang", 3, 3)
    assert gangs["neverPlaced"] == 0
    assert (gangs["meanWait"], gangs["p99Wait"], gangs["racks"]) == (800.0, 2400.0, 1.0)
    assert (huge["placed"], huge["neverPlaced"], huge["meanWait"]) == (0, 1, None)
    assert huge["why"].startswith("default/d: ")
    assert report["figures"]["utilisation"] == {"cpu": 0.8}  # half for 10 of 25 minutes
    assert max(each["waiting"] for each in report["figures"]["timeline"]) == 2
    assert len(json.loads(run(*arguments, "--steps", "-o", "json")[1])["steps"]) == 4
    page = run(*arguments, "-o", "html")[1]
    assert ">Hosts at the peak (after 10 min)</h2>" in page
    assert ">In use at the peak (after 10 min)</h2>" in page
    assert ">100.0%</td>" in page, "of the CPUs"
    assert ">gang</td>" in page
    assert ">40 min</td>" in page, "the longest wait"
    text = run(*arguments)[1]
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[2] == "huge 1 0 1 - - - -"
    assert rows[3].startswith("in use until the last job came: cpu 80.0%; ")
    assert rows[4].startswith('never placed: default/d: topology "default"')


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([], "s.json: a scenario is a list of steps"),
        ([{"advance": "1s"}, {"apply": [{"file": "no.yaml"}]}], "s.json: step 2: "),
        ([{"advance": 30}], "s.json: step 1.advance: is not a duration such as 30s"),
        ([{"expect": {"g": {"state": "Place"}}}], "there are: Waiting, Placed, Running, Degraded"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_said(tmp_path: Path, steps: Any, error: str) -> None:
    (tmp_path / "s.json").write_text(json.dumps(steps))
    code, text = run("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC)
    assert (code, error in text) == (2, True), text


def test_steps_come_by_time(tmp_path: Path) -> None:
    steps = [{"advance": "10m"}, {"at": "15m", "expect": {}}, {"at": "14m", "apply": []}]
    (tmp_path / "w.json").write_text(json.dumps(steps))
    code, text = run("simulate", "--workload", str(tmp_path / "w.json"), "--synthetic", SPEC)
    assert (code, "step 3.at: '14m' is over: the steps before take 900 s" in text) == (2, True)


def test_pods_without_room_and_groups_that_end_are_said(tmp_path: Path) -> None:
    steps = [{"apply": [job("j", 4, required=RACK)]}, {"scale": {"j": 9}}, {"fail": ["host-1-1"]}]
    (tmp_path / "s.json").write_text(json.dumps([*steps[:2], {"scale": {"j": 8}}, steps[2]]))
    arguments = ("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC)
    code, text = run(*arguments)
    assert code == 0
    assert "rack-1: 4; 5 more pods cannot be placed: " in text
    assert "another message" in text
    end = "0 pods moved from failed nodes; 1 group started again without room for such pods; "
    assert text.splitlines()[-1] == f"{end}attempts without room: 1"
    figures = json.loads(run(*arguments, "-o", "json")[1])["figures"]
    assert (figures["lost"], figures["attemptsWithoutRoom"]) == (1, 1)


def test_what_jobs_at_the_start_use_counts_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD[:1]))
    arguments = ("simulate", "--workload", str(tmp_path / "w.json"), "--synthetic", SPEC)
    assert "in use until the end: cpu 50.0%; " in run(*arguments)[1]


def test_synthetic_jobs_are_the_same_for_the_same_seed() -> None:
    spec = "load:0.7 for:1d; small share:9 pods:1 cpu:1 runs:10m; gang pods:2-8 cpu:1 required:rack"

    def figures(seed: str) -> Any:
        options = ("--synthetic", SPEC, "--synthetic-jobs", spec, "--seed", seed, "-o", "json")
        return json.loads(run("simulate", *options)[1])["figures"]

    once = figures("1")
    assert once == figures("1") != figures("2")
    assert [each["kind"] for each in once["kinds"]] == ["gang", "small"]
    assert 0.3 < once["utilisation"]["cpu"] < 1.0


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("load:0.7", "is not 'load:NUMBER for:TIME"),
        ("load:0.7 for:7d; small pods", "'pods' is not NAME:VALUE, such as pods:2-16 or runs:4h"),
        (
            "small share:80 pods:1 runs:1h",
            (
                "'small' is not NAME:VALUE; the first part says how many jobs come and for how"
                ' long, such as "load:0.8 for:1d;"'
            ),
        ),
        ("load:0.7 for:7d; small cpu:1 required:row", "'row' is no level; there are: example.com/"),
        ("load:0.7 for:soon; small cpu:1", "'soon' is not a duration, such as 30m, 4h or 7d"),
        ("load:0.7 for:7d; small x/fpga:1", "'x/fpga' is no resource of the cluster's nodes"),
        ("load:0.7 for:7d; small cpu:1 pods:4-2", "'4-2' is no range of pods"),
        ("load:0.7 for:365d; small cpu:1m runs:1s", "makes more than 1000000 jobs"),
    ],
)
def test_what_is_wrong_with_synthetic_jobs(spec: str, error: str) -> None:
    code, said = run("simulate", "--synthetic", SPEC, "--synthetic-jobs", spec)
    assert code == 2
    assert error in said


def test_a_scenario_may_have_any_number_of_values(tmp_path: Path) -> None:
    hosts = ", ".join(["host-1-1"] * 60_000)
    (tmp_path / "long.yaml").write_text(f"- recover: [{hosts}]")
    assert run("simulate", str(tmp_path / "long.yaml"), "--synthetic", SPEC)[0] == 0


def test_groups_are_looked_through_only_if_nodes_failed_or_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a long simulation takes a time that grows with the square of its jobs."""
    looked: list[str] = []

    def note(group: PlacementGroup) -> Counter[str]:
        looked.append(group.name)
        return hosts_of(group)

    monkeypatch.setattr("nri_policy.cluster.simulation.simulated_groups.hosts_of", note)
    spec = "jobs:100 for:1h; small pods:1 cpu:10m runs:10h"
    code, _ = run("simulate", "--synthetic", SPEC, "--synthetic-jobs", spec)
    assert code == 0
    assert len(looked) <= 1, "the first time, when no node is known to have failed"


ZONES = "rack:2 host:2 cpu:8 memory:8Gi numa:2"  # of 4 CPUs


def aligned(name: str, count: int, cpu: Any) -> Any:
    """A group of Guaranteed pods."""
    limits = {"limits": {"cpu": cpu, "memory": "1Gi"}}
    template = {"spec": {"containers": [{"name": "c", "resources": limits}]}}
    one = {"name": "main", "count": count, "template": template}
    return {"kind": "PlacementGroup"} | group(one, name=name)


def test_groups_wait_for_zones_of_nodes_that_align_pods(tmp_path: Path) -> None:
    """A host has two zones of 4 CPUs: two pods of 3 CPUs, and none of 5, though it has 8 in all."""
    small = {"message": "cpu: 5 asked, 4 in an empty zone", "state": "Unplaceable"}
    steps = [
        {"apply": [aligned("one", 4, 3), aligned("two", 6, 3), aligned("large", 1, 5)]},
        {"expect": {"one": {"state": "Placed"}, "two": {"state": "Waiting"}, "large": small}},
        {"delete": ["one"]},
        {"expect": {"two": {"state": "Placed"}}},
    ]
    file = write(tmp_path / "steps.yaml", steps)
    code, text = run("simulate", file, "--synthetic", ZONES)
    assert code == 0, text


def test_it_is_said_by_zones_why_a_group_waits(tmp_path: Path) -> None:
    """By totals, 10 of these pods fit on the hosts; by zones only 6."""
    steps = [{"apply": [aligned("one", 2, "2500m"), aligned("two", 12, "2500m")]}]
    file = write(tmp_path / "steps.yaml", steps)
    report = json.loads(run("simulate", file, "--synthetic", ZONES, "-o", "json")[1])
    message = (
        'topology "default" allows to fit only 6 out of 12 pod(s);'
        " nodes that align pods to one NUMA node count by their zones"
    )
    [step] = report["steps"]
    assert {each["name"]: each["message"] for each in step["groups"]} == {
        "default/one": "",
        "default/two": message,
    }
    [kind] = report["figures"]["kinds"]
    assert kind["why"] == f"default/two: {message}"


def test_a_group_without_pods_has_its_places(tmp_path: Path) -> None:
    none = {"kind": "PlacementGroup"} | group(pod_set(0, {"required": RACK}))
    assert states(play(tmp_path, {"apply": [none]})[1]) == [[("Placed", {})]]


def test_a_group_of_a_namespace_is_named_with_or_without_it(tmp_path: Path) -> None:
    urgent = job("urgent", 4)
    urgent["metadata"]["namespace"] = "team"
    code, played = play(
        tmp_path,
        {"apply": [urgent]},
        {"scale": {"urgent": 2}},
        {"expect": {"urgent": {"state": "Placed"}, "team/urgent": {"state": "Placed"}}},
        {"delete": ["urgent"]},
    )
    assert code == 0
    assert [[each["name"] for each in step["groups"]] for step in played] == [["team/urgent"]] * 4
    [ended] = played[-1]["groups"]
    assert (ended["state"], ended["change"]) == ("Ended", "was Placed")


def test_a_page_shows_all_groups_after_each_step(tmp_path: Path) -> None:
    """Also those that did not change, and those that ended in the step."""
    scenario = tmp_path / "s.json"
    steps = [{"apply": [job("one", 2), job("two", 2)]}, {"delete": ["two"]}]
    scenario.write_text(json.dumps(steps))
    page = run("simulate", str(scenario), "--synthetic", SPEC, "-o", "html")[1]
    second = page[page.index("Step 2") :]
    assert "default/one" in second
    assert "was Placed" in second


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        ("x/gpu:1", True),
        ("cpu:1", False),
        ("cpu:1 tolerates:x/gpu", True),
        ("cpu:1 tolerates:y,x/gpu", True),
    ],
)
def test_jobs_tolerate_taints_that_are_named_like_what_they_ask_for(
    tmp_path: Path, words: str, placed: bool
) -> None:
    taint = {"key": "x/gpu", "value": "present", "effect": "NoSchedule"}
    where = write(tmp_path / "n.json", {"kind": "Node", **node("n", taints=[taint], gpu=8)})
    jobs = f"jobs:5 for:1h; small pods:1 runs:1m {words}"
    levels = ("--levels", "kubernetes.io/hostname")
    text = run("simulate", "--synthetic-jobs", jobs, "--cluster", where, *levels, "-o", "json")[1]
    [kind] = json.loads(text)["figures"]["kinds"]
    assert kind["placed"] == (kind["jobs"] if placed else 0)


def test_a_group_that_is_scaled_to_nothing_has_no_places_and_may_come_back(tmp_path: Path) -> None:
    code, played = play(
        tmp_path,
        {"apply": [job("j", 4), job("large", 14)]},
        {"scale": {"j": 0}},
        {"expect": {"j": {"state": "Placed", "domains": {}, "message": "it has no pods"}}},
        {"scale": {"j": 2}},
        {"expect": {"j": {"state": "Placed", "domains": {"rack-2": 2}}}},
    )
    assert (code, played[1]["groups"][1]["state"]) == (0, "Placed")


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([{"advance": "20s"}, {"scale": {"j": 3}}], "step 3: the group 'j' has ended"),
        ([{"delete": ["j"]}, {"expect": {"j": {}}}], "step 3: the group 'j' has ended"),
    ],
)
def test_a_step_on_a_group_that_has_ended_is_refused(
    tmp_path: Path, steps: list[Any], error: str
) -> None:
    first = {"apply": [job("j", 16)], "for": "10s"}
    (tmp_path / "s.json").write_text(json.dumps([first, *steps]))
    code, text = run("simulate", str(tmp_path / "s.json"), "--synthetic", SPEC)
    assert code == 2
    assert error in text


def test_objects_of_two_kinds_with_one_name_are_two_groups_in_a_simulation(tmp_path: Path) -> None:
    code, played = play(
        tmp_path,
        {"apply": [job("w", 4)]},
        {"apply": [job("w", 8, kind="Deployment")]},
        {"delete": ["w"]},
    )
    names = [sorted(each["name"] for each in step["groups"]) for step in played]
    assert names[1] == ["default/deployment-w", "default/w"]
    assert "the Deployment default/w is called default/deployment-w here" in played[1]["notes"][0]
    assert (code, "Ended" in {each["state"] for each in played[2]["groups"]}) == (0, True)
