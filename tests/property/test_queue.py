"""The queue against a stream of jobs that takes whatever becomes free: nobody waits for ever."""

from __future__ import annotations

import heapq
import random
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.record import QueuePlace, Rank, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.waiting import WaitingGroups, topology_name
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import PlacementGroup, hosts_of, read_group
from nri_policy.cluster.view import Cluster
from tests.property.seeds import seeds
from tests.unit.cluster import written as objects
from tests.unit.cluster.written import HOSTNAME, group, pod_set, settings

RACK = "example.com/rack"
HOSTS, PER_RACK = 12, 3  # with 4 CPUs each
TIMEOUT = 600.0
LONGEST = 900.0  # seconds that a job runs
STEP = 60.0  # at most
STEPS = 200


class Play:
    """Racks, jobs that come and end, and the queue of those that wait."""

    engine: Engine
    waiting: WaitingGroups

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.number = 0
        self.groups: dict[Key, PlacementGroup] = {}
        self.came: dict[Key, float] = {}
        self.ahead: dict[Key, int] = {}  # that waited when it came
        self.waits: dict[Key, float] = {}  # of gangs that got places
        self.ends: list[tuple[float, Key]] = []
        self.down: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Begin with what is stored, as another leader does."""
        before: dict[Key, tuple[str, ...]] = {}
        if self.number:
            before = {key: hosts for key, _, hosts in self.waiting.reservations()}
        self.cluster = Cluster()
        self.engine = Engine(read_settings(settings("rack", HOSTNAME)), self.cluster.view)
        self.cluster.follow(self.engine.state)
        self.waiting = WaitingGroups(self.engine, GroupTable())
        for at in range(HOSTS):
            self.set_node(f"h{at:02}")
        for key, each in self.groups.items():
            if each.status.assignments:
                self.engine.state.set_group(each)
            else:
                self.put(key, holds=key in before)
                self.waiting.restore(key, before.get(key, ()), self.now)

    def set_node(self, name: str) -> None:
        node = objects.node(name, RACK=f"r{int(name[1:]) // PER_RACK}", ready=name not in self.down)
        self.cluster.set_node(read_node(node, ""))
        self.waiting.see_cluster()

    def put(self, key: Key, *, holds: bool = False) -> None:
        own = self.groups[key]
        rank = rank_of(own.priority, self.came[key], f"{self.came[key]:09.0f}{key[1]}")
        self.waiting.queue.put(key, QueuePlace(rank, topology_name(own), holds=holds))

    def submit(self, kind: str, *pod_sets: dict[str, Any], priority: int = 0) -> Key:
        self.number += 1
        made = read_group(group(*pod_sets, name=f"{kind}-{self.number:05}", priority=priority))
        key = (made.namespace, made.name)
        self.groups[key], self.came[key] = made, self.now
        self.ahead[key] = len(self.waiting.queue)
        self.put(key)
        return key

    def end(self, key: Key) -> None:
        own = self.groups.pop(key, None)
        self.waiting.queue.remove(key)
        if own is not None and own.status.assignments:
            self.engine.state.remove_group(*key)
            self.waiting.queue.note_change()

    def advance(self, seconds: float) -> None:
        """Have jobs end, each at its time, and try who waits."""
        until = self.now + seconds
        while self.ends and self.ends[0][0] <= until:
            self.now, key = heapq.heappop(self.ends)
            self.end(key)
            self.settle()
        self.now = until
        self.settle()

    def settle(self) -> None:
        self.waiting.hold(self.now, self.groups.__getitem__)
        aside = [*self.waiting.reservations()]
        self.waiting.begin_round()
        for key in self.waiting.queue.due():
            rank = self.waiting.queue.rank(key)
            asked = self.groups[key]
            status = self.waiting.place(key, asked)
            if not status.assignments:
                hopeless = self.waiting.is_hopeless(asked)
                self.waiting.queue.note_refusal(key, hopeless=hopeless)
                continue
            self.groups[key] = placed = replace(asked, status=status)
            self.engine.state.set_group(placed)
            aside = [each for each in aside if each[0] != key]  # its hosts are free again
            self.check_hosts(placed, rank, aside)
            self.waiting.queue.remove(key)
            self.waits[key] = self.now - self.came[key]
            runs = self.chance.uniform(1.0, LONGEST)
            heapq.heappush(self.ends, (self.now + runs, key))

    def check_hosts(
        self, placed: PlacementGroup, rank: Rank, aside: list[tuple[Key, Rank, tuple[str, ...]]]
    ) -> None:
        """Nobody of lower rank gets a host that is set aside."""
        for holder, other, hosts in aside:
            if other < rank:
                taken = hosts_of(placed).keys() & {*hosts}
                assert not taken, f"{placed.name} is on {taken}, set aside for {holder}"

    def steal(self) -> None:
        """Jobs come that take what is free at once, or go elsewhere."""
        keys = [self.submit("small", pod_set(1)) for _ in range(self.chance.randint(0, 30))]
        self.settle()
        for key in keys:
            if not self.groups[key].status.assignments:
                self.end(key)

    def gang(self, priority: int = 0) -> None:
        """A larger group comes, which an empty cluster could hold."""
        whole = PER_RACK * 4
        requests = [
            [pod_set(self.chance.randint(2, whole), {"required": RACK})],
            [pod_set(self.chance.randint(2, 2 * whole), {"preferred": RACK})],
            [pod_set(self.chance.randint(2, HOSTS * 4))],
            [pod_set(self.chance.randint(1, PER_RACK), {"required": RACK}, cpu=4)],
            [
                pod_set(self.chance.randint(1, 6), {"required": RACK}, name="a"),
                pod_set(self.chance.randint(1, 4), {"unconstrained": True}, name="b", cpu=3),
            ],
        ]
        self.submit("gang", *self.chance.choice(requests), priority=priority)


@seeds(3)
def test_every_group_that_fits_an_empty_cluster_is_placed_in_bounded_time(seed: int) -> None:
    """Each group ahead of it runs for its hosts once, and what is on them ends in time."""
    play = Play(random.Random(seed))
    for number in range(STEPS):
        play.advance(play.chance.uniform(1.0, STEP))
        play.steal()
        if number % 6 == 0 and len(play.waiting.queue) < 10:
            play.gang()
        if play.chance.random() < 0.05:
            play.begin()
    for _ in range(STEPS):  # no gang comes any more; the others still take what is free
        play.advance(play.chance.uniform(1.0, STEP))
        play.steal()
    gangs = [key for key in play.came if key[1].startswith("gang")]
    assert sum(wait > TIMEOUT for wait in play.waits.values()) > 3, "hosts were set aside"
    for key in gangs:
        bound = TIMEOUT + (play.ahead[key] + 1) * (LONGEST + STEP)
        waited = play.waits.get(key, play.now - play.came[key])
        assert waited <= bound, f"{key} waited {waited} s, {play.ahead[key]} were ahead"


@seeds(3)
def test_no_hosts_go_to_lower_ranks_whatever_fails(seed: int) -> None:
    """Nodes fail and return, groups of higher priority come, leaders change."""
    chance = random.Random(seed)
    play = Play(chance)
    held = 0
    for _ in range(STEPS):
        play.advance(chance.uniform(1.0, STEP))
        play.steal()
        held += any(True for _ in play.waiting.reservations())
        what = chance.random()
        if what < 0.1:
            play.gang(chance.choice([0, 0, 1]))
        elif what < 0.15 and len(play.down) < 3:
            name = f"h{chance.randrange(HOSTS):02}"
            for key in [key for key, each in play.groups.items() if hosts_of(each)[name]]:
                play.end(key)
            play.down.add(name)
            play.set_node(name)
        elif what < 0.25 and play.down:
            name = min(play.down)
            play.down.discard(name)
            play.set_node(name)
        elif what < 0.3:
            before = {key: hosts for key, _, hosts in play.waiting.reservations()}
            play.begin()
            play.waiting.hold(play.now, play.groups.__getitem__)
            after = {key: hosts for key, _, hosts in play.waiting.reservations()}
            assert after == before, "another leader goes on with the same hosts"
    assert held > STEPS / 10
