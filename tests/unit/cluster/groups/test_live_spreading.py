"""Groups behind the gate that are spread, and the most pods of one on a host."""

from __future__ import annotations

from collections import Counter

from tests.support.placement_world import Play, hosts_of

RACK = "example.com/rack"


def submit(play: Play, name: str, pods: int, **annotations: str) -> None:
    play.world.submit(name, pods, 1, "")
    given = {f"placement.nri/{key.replace('_', '-')}": each for key, each in annotations.items()}
    play.world.templates[name] = (given, play.world.templates[name][1])
    for item in play.world.pods_of(name).values():
        item["metadata"]["annotations"] = given
        play.world.put("pods", item)


def racks(found: Counter[str]) -> list[int]:
    return [found["h0"] + found["h1"], found["h2"] + found["h3"], found["h4"] + found["h5"]]


def test_a_group_is_spread_over_racks_and_hosts() -> None:
    play = Play()
    submit(play, "j", 9, spread_over=RACK)
    play.rest()
    found = hosts_of(play, "j")
    assert racks(found) == [3, 3, 3]
    assert max(found.values()) == 2


def test_what_runs_already_counts_and_weights_are_kept() -> None:
    play = Play()
    submit(play, "j", 8, spread_over=f"{RACK}={{r0: 2}}")
    play.rest()
    assert racks(hosts_of(play, "j")) == [4, 2, 2]


def test_no_host_gets_more_than_a_group_allows() -> None:
    play = Play()
    submit(play, "j", 6, max_per_host="1")
    submit(play, "k", 7, max_per_host="1")
    play.rest()
    assert {*hosts_of(play, "j").values()} == {1}
    assert play.world.let_go("k") == (0, 7)
    assert "only 6 out of 7 pod(s)" in play.world.group("job-k").status.message


def test_what_a_failed_host_had_is_spread_anew() -> None:
    play = Play(failure={"policy": "PodTermination", "failFast": True})
    submit(play, "j", 5, spread_over=RACK, max_per_host="1")
    play.rest()
    before = hosts_of(play, "j")
    (empty,) = {f"h{at}" for at in range(6)} - before.keys()
    failed = min(before.keys() - {"h0"})
    play.world.delete("nodes", failed)
    play.rest(schedule=False)
    play.world.evict(failed)
    play.world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == before - Counter([failed]) + Counter([empty])


def test_hosts_where_pods_of_the_group_have_failed_come_later() -> None:
    play = Play(failure={"failFast": False, "policy": "PodTermination"})
    submit(play, "j", 3, spread_over=RACK)
    play.rest()
    world = play.world
    for _ in range(5):  # its pod on h1 fails, again and again
        (name,) = [
            name
            for name, item in world.pods_of("j").items()
            if item["spec"].get("nodeName") == "h1"
            and item.get("status", {}).get("phase") == "Running"
        ]
        world.put("pods", world.objects["pods"][name] | {"status": {"phase": "Failed"}})
        world.control_jobs()
        play.rest()
    assert hosts_of(play, "j")["h1"] == 1  # it keeps its place
    assert play.controller.placer._crashes.of(("default", "job-j")) == {"h1": 5}
    world.delete("groups", "job-j")
    for name in world.pods_of("j"):
        world.delete("pods", name)
    world.control_jobs()
    play.rest()
    assert hosts_of(play, "j")["h1"] == 0
