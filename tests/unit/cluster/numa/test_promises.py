"""What is promised of zones: made, confirmed, expired, taken back."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.numa.promises import (
    CHOSEN_SECONDS,
    MOST_SECONDS,
    REPORT_SECONDS,
    LiveZones,
    NoRoomError,
)
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.foundation.clock import Clock
from nri_policy.nrt.fingerprint import fingerprint, pod_hash

Object = dict[str, Any]
FINGERPRINT = "nodeTopologyPodsFingerprint"
EXCLUSIVE = "with-exclusive-resources"


class World:
    """One node of two NUMA nodes of 4 CPUs, and a clock."""

    def __init__(self, *, scope: str = "container") -> None:
        self.time = 1000.0
        self.scope = scope
        self.devices: tuple[str, ...] = ()
        self.cluster = Cluster()
        self.zones = LiveZones(Extender(), self.cluster.view, Clock(now=lambda: self.time))
        self.cluster.follow(self.zones)
        node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": 8, "a.com/gpu": 2}}}
        self.cluster.set_node(read_node(node, ""))
        self.report()

    def report(
        self,
        *pods: str,
        free: tuple[int, int] = (4, 4),
        printed: bool = True,
        method: str = "",
        listed: tuple[str, ...] | None = None,
        together: str = "",
    ) -> None:
        """The node reports that those pods are on it, which it has *listed*, and what is free.

        Both zones are in one that has so many CPUs *together*.
        """
        values = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": self.scope}
        if printed:
            values[FINGERPRINT] = fingerprint(("default", name) for name in pods)
        if method:
            values[f"{FINGERPRINT}Method"] = method
        if listed is not None:
            values["nri-policy/pods"] = " ".join(
                f"{pod_hash('default', name):016x}" for name in listed
            )
        attributes = [{"name": name, "value": value} for name, value in values.items()]
        zones = [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": name, "capacity": cpus, "allocatable": cpus, "available": cpus}
                    for name in ("cpu", "memory", *self.devices)
                ],
            }
            for number, cpus in enumerate(free)
        ]
        if together:
            cpu = {"name": "cpu", "capacity": 8, "allocatable": 8, "available": together}
            memory = [{"name": "memory set", "value": "0-1"}]
            above = {"name": "socket #0", "type": "socket", "attributes": memory}
            zones.append(above | {"resources": [cpu]})
        document = {"metadata": {"name": "n"}, "attributes": attributes, "zones": zones}
        self.cluster.set_zones(read_zones(document, ""))

    def room(self) -> tuple[int, ...]:
        """The largest pod that each zone alone would hold, of none to four CPUs."""
        held = [0, 0]
        for cpus in range(1, 5):
            chosen = self.zones.fits.zones("n", self.zones.fits.request(pod("probe", cpus)))
            both = self.zones.fits.zones("n", self.zones.fits.request(pod("probe", cpus, cpus)))
            if chosen is not None:
                held[0] = cpus
            if both is not None:
                held[1] = cpus
        return tuple(held)


def pod(name: str, *cpus: int, node: str = "", phase: str = "Pending", zone: str = "") -> Pod:
    limits = [{"cpu": count, "memory": 1} for count in cpus]
    return read_pod(
        {
            "metadata": {
                "name": name,
                "annotations": {"placement.nri/zone": zone} if zone else {},
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"limits": each}} for each in limits],
            },
            "status": {"phase": phase},
        },
        "",
    )


def shared(name: str, cpu: str = "100m", *, device: str = "", zone: str = "") -> Pod:
    """A Burstable pod, bound, as a DaemonSet's; perhaps with a device."""
    requests = {"cpu": cpu, **({device: 1} if device else {})}
    containers = [{"name": "c", "resources": {"requests": requests}}]
    spec = {"nodeName": "n", "containers": containers}
    metadata = {"name": name, "annotations": {ZONE_ANNOTATION: zone} if zone else {}}
    return read_pod({"metadata": metadata, "spec": spec}, "")


def choose(world: World, asked: Pod) -> str | None:
    return world.zones.choose(asked, world.zones.fits.request(asked), ["n"])


def test_a_choice_takes_room_in_the_zone_that_has_most_and_ends() -> None:
    world = World()
    assert world.room() == (4, 4)
    assert choose(world, pod("p", 3)) == "n"
    assert world.room() == (4, 2)
    world.time += CHOSEN_SECONDS - 1
    world.zones.expire()
    assert world.room() == (4, 2)
    world.time += 1
    world.zones.expire()
    assert world.room() == (4, 4)
    assert world.zones.ended == {"expired": 1}


def test_a_pod_without_a_zone_leaves_the_next_one_what_any_choice_of_the_node_leaves() -> None:
    world = World()
    world.report(free=(4, 2))
    choose(world, pod("p", 1))
    assert world.room()[0] == 3  # 3 and 2 are left, or 4 and 1
    choose(world, pod("q", 3))
    assert world.room()[0] == 1  # 2 and none are left, or 1 and 1
    assert choose(world, pod("r", 3)) is None


def test_a_binding_takes_room_in_the_zone_that_it_names() -> None:
    world = World()
    assert world.zones.bind(pod("p", 3), "n") == "node-0"
    assert world.room() == (4, 2)
    assert world.zones.bind(pod("q", 3), "n") == "node-1"
    assert world.room() == (1, 1)
    assert choose(world, pod("r", 2)) is None


def test_a_pod_is_not_bound_where_it_does_not_fit_any_more() -> None:
    """Since it was let through, another pod came there, or a report that says otherwise."""
    world = World()
    assert choose(world, pod("p", 4)) == "n"
    world.report(free=(3, 3))
    with pytest.raises(NoRoomError, match="node n: cannot align container"):
        world.zones.bind(pod("p", 4), "n")
    assert not world.zones.promises
    assert world.zones.bind(pod("p", 3), "n") == "node-0"
    with pytest.raises(NoRoomError):
        world.zones.bind(pod("q", 3, 3), "n")
    assert world.zones.bind(pod("q", 1), "elsewhere") is None


def test_zones_keep_no_more_than_the_zone_above_them_has_left() -> None:
    """Burstable pods share 200m of both: whichever zone is filled, they are in the other one."""
    world = World()
    world.report(together="7800m")
    assert world.room() == (4, 4)
    assert world.zones.bind(pod("p", 4), "n") == "node-0"
    assert world.room() == (3, 1)
    assert world.zones.bind(pod("q", 1), "n") == "node-1"
    assert world.room() == (2, 1)
    world.zones.remove_pod("default", "p")
    assert world.room() == (4, 3)


def test_a_pod_keeps_the_zone_that_it_was_chosen_for_whoever_is_chosen_for_after_it() -> None:
    world = World()
    world.report(free=(2, 4))
    assert choose(world, pod("large", 4)) == "n"
    assert choose(world, pod("small", 2)) == "n"
    assert world.zones.bind(pod("large", 4), "n") == "node-1"
    assert world.zones.bind(pod("small", 2), "n") == "node-0"
    assert world.room() == (0, 0)


def test_a_pod_of_several_zones_has_none_by_name() -> None:
    world = World()
    assert world.zones.bind(pod("p", 3, 3), "n") is None
    assert world.room() == (1, 1)


def test_a_pod_that_one_zone_holds_whole_is_sent_there() -> None:
    """Its second container alone would not fit beside the first one, in the lowest zone."""
    world = World()
    world.report(free=(3, 4))
    assert world.zones.bind(pod("p", 2, 2), "n") == "node-1"
    assert world.room()[0] == 3


def test_a_pod_that_shares_is_sent_to_the_zone_that_has_most_if_that_has_room() -> None:
    """In a full zone it would get CPUs of another one, which others are promised."""
    world = World()
    world.report(free=(1, 4), listed=("others",))
    assert world.zones.bind(shared("p", "1500m"), "n") == "node-1"
    assert world.room()[0] == 2
    assert world.zones.bind(shared("q", "2600m"), "n") is None
    assert world.zones.bind(shared("r", "0"), "n") is None, "it takes nothing of a zone"
    world.devices = ("a.com/gpu",)
    world.report(free=(4, 1), listed=("others",))
    assert world.zones.bind(shared("with-a-device", "2", device="a.com/gpu"), "n") == "node-0"
    world.report(free=(1, 4), method=EXCLUSIVE)
    assert world.zones.bind(shared("on-another-node", "3"), "n") == "node-0"


def test_what_is_asked_again_is_taken_back_first() -> None:
    world = World()
    choose(world, pod("p", 3))
    world.zones.withdraw(("default", "p"))
    assert world.room() == (4, 4)
    world.zones.withdraw(("default", "p"))
    assert world.zones.ended == {"withdrawn": 1}


def test_a_bound_pod_holds_its_place_until_the_node_reports_it() -> None:
    world = World()
    choose(world, pod("p", 3))
    world.zones.set_pod(pod("p", 3, node="n"))
    world.zones.withdraw(("default", "p"))  # bound: no longer to be taken back
    world.time += CHOSEN_SECONDS + 1
    world.zones.expire()
    world.report()  # something else changed
    assert world.zones.promises
    world.report("p", free=(1, 4))
    assert world.zones.promises == {}
    assert world.room() == (4, 2)
    assert world.zones.ended == {"reported": 1}


def test_a_report_that_has_some_pods_ends_their_promises_only() -> None:
    world = World()
    for name in "pqr":
        world.time += 1
        world.zones.set_pod(pod(name, 1, node="n"))
    world.report("p", "q", free=(2, 4))
    assert world.zones.promises.keys() == {("default", "r")}
    world.report("other", free=(2, 4))  # says nothing of ours
    assert world.zones.promises.keys() == {("default", "r")}
    world.time += MOST_SECONDS
    world.zones.expire()
    assert not world.zones.promises


def test_pods_that_share_are_in_no_fingerprint_of_those_with_exclusive_resources() -> None:
    world = World()
    world.zones.set_pod(shared("of-a-daemon-set"))
    world.zones.set_pod(pod("p", 3, node="n"))
    world.report("p", free=(1, 4))  # the method is `all`, and the other pod is missing
    assert world.zones.promises
    world.report("p", free=(1, 4), method=EXCLUSIVE)
    assert not world.zones.promises
    world.zones.set_pod(pod("q", 3, node="n"))
    world.report("p", "of-a-daemon-set", "q", free=(1, 1), method="all")
    assert not world.zones.promises


def test_a_pod_with_a_device_of_a_zone_is_in_a_fingerprint_of_exclusive_resources() -> None:
    world = World()
    world.zones.set_pod(shared("with-a-device-that-no-zone-has", device="b.com/gpu"))
    world.zones.set_pod(pod("p", 3, node="n"))
    world.report("p", free=(1, 4), method=EXCLUSIVE)
    assert ("default", "p") not in world.zones.promises
    world.zones.set_pod(shared("q", device="a.com/gpu"))
    world.devices = ("a.com/gpu",)
    world.report("p", free=(1, 4), method=EXCLUSIVE)
    assert ("default", "q") in world.zones.promises
    world.report("p", "q", free=(1, 4), method=EXCLUSIVE)
    assert ("default", "q") not in world.zones.promises


def test_a_report_that_lists_its_pods_ends_their_promises_whatever_else_is_on_the_node() -> None:
    world = World()
    world.zones.set_pod(shared("of-a-daemon-set", "0"))
    for name in "pqr":
        world.zones.set_pod(pod(name, 1, node="n"))
    world.report(free=(3, 4), method=EXCLUSIVE, listed=("q", "unknown"))  # q's image was there
    assert world.zones.promises.keys() == {("default", "p"), ("default", "r")}
    assert world.room()[0] == 3


def test_a_pod_that_the_last_report_already_has_is_promised_nothing() -> None:
    world = World()
    world.report("p", free=(1, 4), listed=("p",))
    world.zones.set_pod(pod("p", 3, node="n"))
    assert not world.zones.promises


def test_what_is_heard_of_other_pods_after_a_report_confirms_it() -> None:
    world = World()
    world.zones.set_pod(pod("gone", 1, node="n"))
    world.time += 1
    world.zones.set_pod(pod("p", 3, node="n"))
    world.report("p", free=(1, 4))
    assert world.zones.promises
    world.zones.remove_pod("default", "gone")
    assert not world.zones.promises


def test_without_a_fingerprint_a_later_report_ends_it() -> None:
    world = World()
    world.zones.set_pod(pod("p", 3, node="n"))
    world.report(printed=False)
    assert world.zones.promises
    world.time += REPORT_SECONDS
    world.report(printed=False, free=(1, 4))
    assert not world.zones.promises


def test_a_pod_that_others_bound_is_promised_its_place() -> None:
    world = World()
    world.zones.set_pod(pod("p", 3, node="n", zone="node-1"))
    assert world.zones.promises["default", "p"].zone == 1
    assert world.room() == (4, 2)
    world.zones.remove_pod("default", "p")
    assert world.room() == (4, 4)
    assert world.zones.ended == {"deleted": 1}


@pytest.mark.parametrize("first", ["pod", "report"])
def test_a_pod_that_runs_holds_its_place_until_the_report_that_lists_pods_has_it(
    first: str,
) -> None:
    """The report is older than the pod, or nobody updates it: the pod has the CPUs all the same."""
    world = World()
    for each in (first, "report" if first == "pod" else "pod"):
        if each == "pod":
            world.zones.set_pod(pod("p", 3, node="n", phase="Running"))
        else:
            world.report(listed=("other",))
    assert world.room() == (4, 2)
    world.time += 10 * MOST_SECONDS
    world.zones.expire()
    world.report(listed=("other",))
    assert world.room() == (4, 2)
    world.report(listed=("other", "p"), free=(1, 4))
    assert world.zones.ended == {"reported": 1}
    assert world.room() == (4, 2)


def test_a_place_expires_after_all_where_reports_no_longer_list_their_pods() -> None:
    world = World()
    world.report(listed=())
    world.zones.set_pod(pod("p", 3, node="n"))
    world.time += MOST_SECONDS
    world.zones.expire()
    assert world.zones.promises
    world.report("other", method=EXCLUSIVE)
    world.time += CHOSEN_SECONDS
    world.zones.expire()
    assert world.zones.ended == {"expired": 1}


@pytest.mark.parametrize("printed", [True, False])
def test_pods_that_run_are_in_a_report_that_does_not_list_its_pods(printed: bool) -> None:
    world = World()
    world.report("another", printed=printed)
    world.zones.set_pod(pod("p", 3, node="n", phase="Running"))
    assert not world.zones.promises


def test_finished_pods_hold_nothing() -> None:
    world = World()
    world.zones.set_pod(pod("q", 3, node="n"))
    world.zones.set_pod(pod("q", 3, node="n", phase="Succeeded"))
    assert not world.zones.promises


def test_a_pod_bound_elsewhere_frees_what_was_chosen() -> None:
    world = World()
    choose(world, pod("p", 3))
    world.zones.set_pod(pod("p", 3, node="other"))
    assert world.room() == (4, 4)
    assert world.zones.promises["default", "p"].node == "other"


def test_pods_that_share_or_ask_for_nothing_are_promised_nothing() -> None:
    world = World()
    world.zones.set_pod(pod("p", node="n"))
    burstable = read_pod(
        {
            "metadata": {"name": "q"},
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": 3}}}],
            },
        },
        "",
    )
    world.zones.set_pod(burstable)
    assert not world.zones.promises


def test_pods_that_share_are_promised_cpus_of_a_zone_whose_report_lists_its_pods() -> None:
    """Such zones lack what these pods share, once they run."""
    world = World()
    world.zones.set_pod(shared("p", "1", zone="node-1"))
    assert not world.zones.promises
    world.report(free=(4, 3), listed=())
    assert world.zones.promises.keys() == {("default", "p")}, "it is not there yet"
    world.zones.set_pod(shared("r", "3", zone="node-0"))
    assert world.room() == (2, 1)
    world.report(free=(1, 2), listed=("p", "r"))
    assert not world.zones.promises
    assert world.room()[0] == 2


def test_a_pod_that_shares_and_was_sent_to_no_zone_takes_what_the_whole_node_has_left() -> None:
    """No zone has room for it alone: nobody knows how much of which one the node gives it."""
    world = World()
    world.report(listed=("others",), together="8")
    assert world.zones.bind(shared("p", "5"), "n") is None
    assert world.room() == (3, 3)
    assert world.zones.bind(pod("q", 3), "n") == "node-0"
    with pytest.raises(NoRoomError):
        world.zones.bind(pod("r", 1), "n")
    world.zones.set_pod(shared("p", "5"))
    world.report(listed=("p",), together="3")
    assert world.zones.promises.keys() == {("default", "q")}
    world.zones.remove_pod("default", "q")
    assert world.room() == (4, 4), "as reported"


def test_a_pod_that_shares_with_a_device_takes_that_off_a_zone() -> None:
    world = World()
    world.devices = ("a.com/gpu",)
    world.report(listed=("others",), together="8")
    world.zones.set_pod(shared("p", "5", device="a.com/gpu"))
    assert world.room() == (3, 3)
    assert len(world.zones.promises) == 1


def test_a_node_of_one_zone_has_what_pods_share_in_it() -> None:
    world = World()
    zone = {"name": "cpu", "capacity": 4, "allocatable": 4, "available": 4}
    memory = [{"name": "memory set", "value": "0"}]
    values = {"topologyManagerPolicy": "single-numa-node", "nri-policy/pods": "of-others"}
    document = {
        "metadata": {"name": "n"},
        "attributes": [{"name": name, "value": value} for name, value in values.items()],
        "zones": [
            {"name": "node-0", "type": "Node", "resources": [zone, zone | {"name": "memory"}]},
            {"name": "root", "type": "socket", "attributes": memory, "resources": [zone]},
        ],
    }
    world.cluster.set_zones(read_zones(document, ""))
    world.zones.set_pod(shared("p", "3"))
    assert world.room()[0] == 1


def test_a_pod_is_taken_in_all_where_the_scope_is_the_pod() -> None:
    world = World(scope="pod")
    assert world.zones.bind(pod("p", 1, 2), "n") == "node-0"
    assert world.zones.bind(pod("q", 2, 2), "n") == "node-1"
    assert world.room()[0] == 1


def test_what_goes_is_forgotten() -> None:
    world = World()
    world.zones.set_pod(pod("p", 3, node="n"))
    assert {*world.zones.pods()} == {("default", "p")}
    world.zones.remove_pod("default", "p")
    assert not world.zones.promises
    assert {*world.cluster.view.zones} == {*world.cluster.view.nodes} == {"n"}
    world.cluster.remove_zones("n")
    assert choose(world, pod("p", 9)) == "n"  # nothing is known of its zones
    world.cluster.remove_node("n")
    assert choose(world, pod("p", 1)) is None


def test_a_report_that_makes_no_sense_is_not_used() -> None:
    world = World()
    world.cluster.remove_zones("n", stale=True)
    assert choose(world, pod("p", 1)) is None
    world.report()
    assert choose(world, pod("p", 1)) == "n"
