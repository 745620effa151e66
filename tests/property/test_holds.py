"""Holds in a simulated cluster: nobody waits for ever, and nobody waits for what can never be.

Hosts have pods of DaemonSets and of services, which stay, and jobs, which end. What is set aside
for whom is the service's own code; spec cluster.md §9.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.requests.group import PlacementGroup, hosts_of, read_group
from nri_policy.cluster.simulation.playback import Simulation
from nri_policy.cluster.snapshot import read_snapshot
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, pod_spec, settings

RACK = "example.com/rack"
RACKS, IN_RACK, CPUS = 3, 4, 8
TIMEOUT = HOLD_TIMEOUT = 600.0
LONGEST = 590.0  # seconds that jobs run which end while a hold lasts
HOURS = 3600.0
ALWAYS = {"restartPolicy": "Always"}


class Play:
    """A cluster with what stays, and what comes of its groups."""

    def __init__(self, **groups: Any) -> None:
        hosts = [f"h{at:02}" for at in range(RACKS * IN_RACK)]
        pods: list[Object] = []

        def stay(name: str, host: str, cpu: str) -> None:
            spec = pod_spec({"cpu": cpu}, nodeName=host, **ALWAYS)
            status = {"phase": "Running"}
            pods.append({"metadata": {"name": name}, "spec": spec, "status": status})

        for host in hosts:
            stay(f"agent-{host}", host, "100m")
        for number, host in enumerate(hosts[::IN_RACK]):
            stay(f"web-{host}", host, str(1 + number))
        nodes = [node(host, RACK=f"r{at // IN_RACK}", cpu=CPUS) for at, host in enumerate(hosts)]
        snapshot = read_snapshot({"nodes": nodes, "pods": pods})
        using = read_settings(
            settings("rack", HOSTNAME, groups=groups, failure={"failFast": False})
        )
        cluster = cluster_of(snapshot)
        self.engine = engine_of(snapshot, using, cluster)
        self.groups = Simulation(self.engine, cluster, snapshot.classes).groups
        self.waiting = self.groups.waiting
        self.came: dict[str, float] = {}
        self.ahead: dict[str, int] = {}  # groups that waited when it came
        self.placed: dict[str, tuple[float, dict[str, int]]] = {}  # when, and where
        self.holds: dict[str, list[float]] = {}  # when hosts were set aside for a group
        self._watch()

    def _watch(self) -> None:
        """Note what is placed, and what is set aside."""
        recorder, note = self.groups.recorder, self.groups.recorder.note_placement
        hold = self.waiting.hold

        def noted(name: str, group: PlacementGroup, now: float) -> None:
            self.placed[group.name] = now, dict(hosts_of(group))
            note(name, group, now)

        def held(now: float, find: Callable[..., PlacementGroup]) -> None:
            before = {key for key, *_ in self.waiting.reservations()}
            hold(now, find)
            for key, *_ in self.waiting.reservations():
                if key not in before:
                    self.holds.setdefault(key[1], []).append(now)

        recorder.note_placement = noted  # type: ignore[method-assign]
        self.waiting.hold = held  # type: ignore[method-assign]

    def submit(self, name: str, *pod_sets: Object, runs: float | None, priority: int = 0) -> None:
        self.came[name] = self.groups.agenda.now
        self.ahead[name] = len(self.waiting.queue)
        made = read_group(group(*pod_sets, name=name, priority=priority))
        self.groups.submit(made, runs, "group")
        self.groups.settle()

    def advance(self, seconds: float) -> None:
        self.groups.advance(self.groups.agenda.now + seconds)

    def waited(self, name: str) -> float:
        """For how long a group has waited for its places, up to now if it has none."""
        placed = self.placed.get(name)
        return (self.groups.agenda.now if placed is None else placed[0]) - self.came[name]


def never(chance: random.Random) -> list[Object]:
    """A group that fits nowhere beside what stays; most would fit an empty cluster."""
    return [
        chance.choice(
            [
                pod_set(1, cpu=CPUS),  # a DaemonSet has 100m of each host
                pod_set(IN_RACK, {"required": RACK}, cpu=CPUS),
                pod_set(RACKS * IN_RACK, cpu=CPUS - 1),  # services have more of some hosts
                pod_set(8 * IN_RACK, {"required": RACK}),
                pod_set(RACKS * IN_RACK * CPUS),
                pod_set(2, cpu=2 * CPUS),
                pod_set(2, spec={"nodeSelector": {RACK: "r9"}}),
            ]
        )
    ]


def gang(chance: random.Random) -> list[Object]:
    """A larger group that fits beside what stays."""
    return chance.choice(
        [
            [pod_set(chance.randint(4, 7 * (IN_RACK - 1)), {"required": RACK})],
            [pod_set(chance.randint(1, IN_RACK - 1), {"required": RACK}, cpu=CPUS - 1)],
            [pod_set(chance.randint(8, 5 * RACKS * IN_RACK), {"preferred": RACK})],
            [pod_set(RACKS * (IN_RACK - 1), cpu=CPUS - 1)],  # all hosts without a service
            [
                pod_set(1, {"unconstrained": True}, name="driver", cpu=2),
                pod_set(2, {"required": RACK}, name="workers", cpu=CPUS - 1),
            ],
        ]
    )


@seeds(3)
def test_groups_that_can_never_fit_delay_nobody(seed: int) -> None:
    """All others are placed at the same times, on the same hosts, as if these did not exist."""

    def played(*, with_them: bool) -> Play:
        chance = random.Random(seed)
        play = Play(preemption=chance.random() < 0.3)
        for number in range(400):
            play.advance(chance.expovariate(1 / 60))
            what, priority = chance.random(), chance.choice([0, 0, 0, 1])
            runs = chance.uniform(60, 2 * HOURS)
            if what < 0.15:
                hopeless = never(chance)
                name = f"never-{number}"
                play.groups.agenda.schedule(play.groups.agenda.now + TIMEOUT)  # as its timeout does
                if with_them:
                    play.submit(name, *hopeless, runs=runs, priority=2 * priority)
                else:
                    play.groups.settle()
            elif what < 0.25:
                play.submit(f"gang-{number}", *gang(chance), runs=runs, priority=priority)
            else:
                pods = pod_set(chance.randint(1, 3))
                play.submit(f"small-{number}", pods, runs=runs, priority=priority)
        play.advance(12 * HOURS)
        return play

    one, other = played(with_them=True), played(with_them=False)
    there = [name for name in one.came if name.startswith("never")]
    assert len(there) > 30
    assert not {*there} & {*one.placed}
    assert not {*there} & {*one.holds}
    assert one.placed == other.placed
    assert one.holds == other.holds
    assert one.holds, "hosts were set aside for others"


@seeds(3)
def test_with_jobs_that_end_every_group_that_fits_is_placed_in_bounded_time(seed: int) -> None:
    """A hold ends with its group's places, for all on its hosts ends before `holdTimeout` is over.

    So a group waits for `timeout`, and for the holds of those that waited before it.
    """
    chance = random.Random(seed)
    play = Play()
    for number in range(500):
        play.advance(chance.expovariate(1 / 20))
        what, runs = chance.random(), chance.uniform(60, LONGEST)
        if what < 0.02:
            play.submit(f"never-{number}", *never(chance), runs=runs)
        elif what < 0.06 and len(play.waiting.queue) < 30:
            play.submit(f"gang-{number}", *gang(chance), runs=runs)
        else:
            play.submit(f"small-{number}", pod_set(chance.randint(1, 3)), runs=runs)
    fitting = [name for name in play.came if not name.startswith("never")]
    assert len([name for name in play.holds if name.startswith("gang")]) > 3
    for name in fitting:
        bound = TIMEOUT + (play.ahead[name] + 1) * LONGEST
        assert play.waited(name) <= bound, f"{name}: {play.ahead[name]} were ahead"
    assert play.waiting.ended == 0, "no hold was in vain"


@seeds(3)
def test_groups_that_hardly_ever_fit_hold_ever_more_rarely(seed: int) -> None:
    """Jobs that run for days are on all hosts: what is left there is for small jobs."""
    chance = random.Random(seed)
    play = Play()
    for number in range(RACKS * IN_RACK):
        play.submit(f"long-{number}", pod_set(1, cpu=4), runs=chance.uniform(9, 12) * 24 * HOURS)
    wide = chance.randint(1, 3)
    for number in range(wide):
        play.submit(f"wide-{number}", pod_set(RACKS * (IN_RACK - 1), cpu=CPUS - 1), runs=HOURS)
    while play.groups.agenda.now < 7 * 24 * HOURS:
        play.advance(chance.expovariate(1 / 600))
        play.submit(f"small-{len(play.came)}", pod_set(1), runs=chance.uniform(60, HOURS))
    for number in range(wide):
        starts = play.holds[f"wide-{number}"]
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert len(starts) > 10
        assert all(gap >= min(600 * 2**at, 12 * HOURS) for at, gap in enumerate(gaps))
    small = [play.waited(name) for name in play.came if name.startswith("small")]
    assert max(small) <= TIMEOUT + wide * HOLD_TIMEOUT
    assert sum(small) / len(small) < 60.0, "seconds"


@seeds(3)
def test_a_group_that_runs_gets_a_host_for_a_lost_one_in_bounded_time(seed: int) -> None:
    """Small jobs come at a load that leaves no host free by chance."""
    chance = random.Random(seed)
    play = Play()
    wanted = pod_set(2, {"required": RACK}, cpu=CPUS - 1)
    play.submit("train", wanted, runs=None)
    made = play.groups.by_key["default", "train"]
    lost, failed = chance.choice(sorted(hosts_of(made))), 0.0
    for number in range(600):
        play.advance(chance.expovariate(1 / 8))
        play.submit(f"small-{number}", pod_set(1), runs=chance.uniform(60, LONGEST))
        if number == 200:
            play.groups.fail(lost)
            failed = play.groups.agenda.now
            play.groups.settle()
            assert play.groups.by_key["default", "train"].status.state == "Degraded"
        if number > 200:
            now = play.groups.by_key["default", "train"].status
            if play.groups.agenda.now > failed + TIMEOUT + LONGEST:
                assert (now.state, now.unhealthy_nodes, now.reserved) == ("Placed", [], [])
    assert lost not in hosts_of(play.groups.by_key["default", "train"])
