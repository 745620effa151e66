"""Resource claims in the engine: strict grants that are one more kind of holder."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Prepared, Reconfigured, Synchronized, Unprepared
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import view_of
from nri_policy.workload.claim import ClaimPart
from tests.support import bookkeeping, nodes
from tests.support.claims import part, user
from tests.support.engine_driver import EngineDriver
from tests.support.rooms import with_cpus

# of 4 NUMA nodes of 4 CPUs; CPU 0 is reserved
NODE_1, NODE_2 = CPUSet.parse("4-7"), CPUSet.parse("8-11")


class Driver(EngineDriver):
    """A node with claims."""

    def prepare(self, *parts: ClaimPart) -> list[str]:
        """Prepare a claim; return the CPUs of its parts."""
        self.handle(Prepared(parts=parts))
        bookkeeping.check(self.engine, self.runtime)
        return [str(self.engine.state.claims[each.id].grant.exclusive) for each in parts]

    def unprepare(self, part: ClaimPart) -> None:
        self.handle(Unprepared(claim=part.claim))
        bookkeeping.check(self.engine, self.runtime)

    def notes(self, container_id: str) -> tuple[str, ...]:
        return self.engine.state.placed[container_id].explanation.notes


def test_a_claim_holds_its_cpus_before_any_container_comes() -> None:
    node = Driver()
    sharer = nodes.container(500, 1000)
    node.create(sharer)
    assert node.prepare(part(2000, 1)) == ["4-5"]
    assert node.free() == CPUSet.parse("1-3,6-15")
    assert CPUSet.parse("4-5").isdisjoint(CPUSet.parse(node.cpus(sharer)))
    owner = nodes.container(4000)
    node.create(owner)
    assert node.pool(owner) != "NUMA node #1"


def test_containers_join_and_leave_a_claim_that_stays() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    first, second = user(claim), user(claim, milli=2000)
    assert node.create(first) == node.create(second) == "4-5"
    assert node.runtime.quotas[second.id] == NO_QUOTA, "its cpuset is its limit"
    node.stop(first)
    again = user(claim)
    assert node.create(again) == "4-5"
    assert node.mems(again) == "1"
    for each in (second, again):
        node.stop(each)
    assert node.free() == CPUSet.parse("1-3,6-15")
    node.unprepare(claim)
    assert node.free() == CPUSet.parse("1-15")
    assert not node.engine.state.claims


def test_a_fraction_is_shared_in_the_pool_of_the_device() -> None:
    node, claim = Driver(), part(2500, 1)
    assert node.prepare(claim) == ["4-5"]
    container = user(claim, milli=2500)
    assert node.create(container) == "4-7"
    view = view_of(node.engine)
    assert view.exposed(container.id)["EXCLUSIVE_CPUS"] == "4-5"
    assert view.exposed(container.id)["SHARED_CPUS"] == "6-7"
    assert node.engine.state.supply.shared_milli_in(node.grant(container).pool) == 500


@pytest.mark.parametrize(
    ("requested", "cpus", "note"),
    [
        (2000, "4-5", "2 CPU of numa1 by claim default/cpus (cpu)"),
        (0, "4-5", "schedulers count the difference as free"),
        (3500, "4-7", "it shares 1500m CPU of NUMA node #1, which it requests beyond its claims"),
    ],
)
def test_what_a_container_requests_names_the_cpus_of_its_claims_once_more(
    requested: int, cpus: str, note: str
) -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    container = user(claim, milli=requested)
    assert node.create(container) == cpus
    notes = node.notes(container.id)
    assert note in notes[-1]


def test_a_request_beyond_claims_goes_to_a_wider_pool_if_theirs_has_no_room() -> None:
    node, claim = Driver(), part(4000, 1)
    node.prepare(claim)
    container = user(claim, milli=5000)
    assert node.create(container) == "1-7"
    assert node.pool(container) == "socket #0"


def test_a_request_beyond_claims_that_fits_nowhere_is_refused_with_the_reason() -> None:
    node, held = Driver("package:1 numa:2(memory=4GiB) core:4"), part(1000, 1)
    node.prepare(held)
    text = "no pool has 19 CPU to share beside the CPUs of its claims"
    assert node.refuse(user(held, milli=20_000)) == text
    large = user(held, milli=1000)
    large = replace(large, resources=replace(large.resources, memory_limit=20 << 30))
    assert "20 GiB of memory do not fit: nodes 0-1 have 8 GiB" in node.refuse(large)


def test_two_claims_of_one_container_are_both_its_cpus() -> None:
    node, near, far = Driver(), part(2000, 1), part(1000, 2, claim="more")
    node.prepare(near)
    node.prepare(far)
    container = user(near, far)
    assert node.create(container) == "4-5,8"
    assert node.pool(container) == "root"


def test_parts_of_one_claim_are_held_all_or_none() -> None:
    node = Driver()
    parts = part(2000, 1, request="a"), part(5000, 2, request="b")
    message = node.refuse(Prepared(parts=parts))
    assert message == "claim default/cpus (b): numa2 lacks 1 CPU: 4 free, 5 asked"
    assert not node.engine.state.claims
    assert node.prepare(replace(parts[0]), replace(parts[1], milli=4000)) == ["4-5", "8-11"]


def test_a_prepared_claim_is_prepared_again_as_it_is_and_not_otherwise() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    before = node.engine.state.snapshot()
    assert node.prepare(claim) == ["4-5"]
    assert node.engine.state.snapshot() == before
    for other in (part(3000, 1), part(2000, 2), part(2000, 1, request="x")):
        assert "another allocation" in node.refuse(Prepared(parts=(other,)))
        assert node.engine.state.snapshot() == before


def test_malformed_and_unprepared_claims_are_refused() -> None:
    node = Driver()
    assert "no NUMA node #9" in node.refuse(Prepared(parts=(part(1000, 9),)))
    assert "asks for nothing" in node.refuse(Prepared(parts=(part(0, 1),)))
    assert "not prepared" in node.refuse(user(part(1000, 1)))


def test_an_unknown_claim_is_given_back_already() -> None:
    node = Driver()
    assert not node.handle(Unprepared(claim="who")).changes


def test_a_claim_that_is_unprepared_in_use_ends_with_its_last_container() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    containers = [user(claim) for _ in range(2)]
    for each in containers:
        node.create(each)
    node.unprepare(claim)
    assert claim.id in node.engine.state.claims
    node.stop(containers[0])
    assert node.free().isdisjoint(CPUSet.parse("4-5"))
    node.stop(containers[1])
    assert not node.engine.state.claims
    assert node.free() == CPUSet.parse("1-15")


def test_a_claim_that_was_to_end_is_wanted_again() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    container = user(claim)
    node.create(container)
    node.unprepare(claim)
    node.prepare(claim)
    node.stop(container)
    assert claim.id in node.engine.state.claims


# ---- room


def test_who_requests_nothing_makes_room_first() -> None:
    node = Driver()
    idle = [nodes.best_effort() for _ in range(4)]
    for each in idle:
        node.create(each)
    assert node.prepare(part(4000, 1)) == ["4-7"]


def test_small_sharers_go_up_the_tree() -> None:
    node = Driver()
    sharers = [nodes.container(500, 1000) for _ in range(4)]
    for each in sharers:
        node.create(each)
    (there,) = (each for each in sharers if node.pool(each) == "NUMA node #1")
    assert node.prepare(part(4000, 1)) == ["4-7"]
    assert node.pool(there) == "socket #0"
    assert "claim default/cpus" in node.notes(there.id)[-1]


def test_nobody_with_a_request_moves_if_the_settings_say_so() -> None:
    node = Driver(dra={"makeRoom": "none"})
    for _ in range(4):
        node.create(nodes.container(500, 1000))
    assert "lacks" in node.refuse(Prepared(parts=(part(4000, 1),)))


def test_owners_move_to_other_pools_only_if_the_settings_allow_it() -> None:
    for how in ("shared", "exclusive"):
        node = Driver(dra={"makeRoom": how})
        owners = [nodes.container(3000) for _ in range(2)]
        for each in owners:
            node.create(each)
        there = owners[0]
        number = int(node.pool(there)[-1])
        wanted = part(4000 if number else 3000, number)
        if how == "shared":
            message = node.refuse(Prepared(parts=(wanted,)))
            assert f"held by {there.full_name}" in message
            continue
        node.prepare(wanted)
        assert node.pool(there) != f"NUMA node #{number}"
        assert len(node.grant(there).exclusive) == 3
        assert "moved from" in node.notes(there.id)[-1]
        assert node.changed()[there.id] == node.cpus(there)


def test_owners_that_fit_nowhere_else_stay() -> None:
    node = Driver(dra={"makeRoom": "exclusive"})
    owners = [nodes.container(3000) for _ in range(4)]
    before = [node.create(each) for each in owners]
    assert "numa1 lacks 3 CPUs: 1 free, 4 asked" in node.refuse(Prepared(parts=(part(4000, 1),)))
    assert [node.cpus(each) for each in owners] == before
    assert not node.engine.state.moved


@pytest.mark.parametrize("annotation", ["static-cpus", "cpu.preserve"])
def test_containers_with_annotations_against_moves_stay(annotation: str) -> None:
    node = Driver(dra={"makeRoom": "exclusive"})
    key = f"{annotation}.resource-policy.nri.io/pod"
    owners = [nodes.container(3000, annotations={key: "true"}) for _ in range(4)]
    for each in owners:
        node.create(each)
    if annotation == "cpu.preserve":
        assert node.prepare(part(4000, 1)) == ["4-7"]
    else:
        assert "lacks" in node.refuse(Prepared(parts=(part(4000, 1),)))


def test_claims_never_move_for_one_another() -> None:
    node = Driver(dra={"makeRoom": "exclusive"})
    node.prepare(part(3000, 1))
    assert "held by claim default/cpus" in node.refuse(
        Prepared(parts=(part(2000, 1, claim="second"),))
    )


# ---- restart and change


def _restarted(node: Driver, *listed: str) -> Driver:
    """Return a new engine that has what the store of *node* has, and who of the *listed* runs."""
    view = view_of(node.engine)
    again = Driver()
    held = {each: view.to_store(each) for each in view.holders}
    containers = tuple(
        nodes.running(view.placed[each].container, *view.sent[each]) for each in listed
    )
    again.handle(Synchronized(containers=containers, held=held))
    for each in containers:
        again.runtime.cpus[each.id], again.runtime.mems[each.id] = view.sent[each.id]
    bookkeeping.check(again.engine, again.runtime)
    return again


def test_claims_and_their_containers_come_back_after_a_restart() -> None:
    node, claim = Driver(), part(2500, 1)
    node.create(nodes.container(500, 1000))
    node.prepare(claim)
    container = user(claim, milli=2500)
    node.create(container)
    again = _restarted(node, container.id)
    assert again.engine.state.claims[claim.id].grant == node.engine.state.claims[claim.id].grant
    assert again.grant(container) == node.grant(container)
    assert again.prepare(claim) == ["4-5"]


def test_what_two_pods_share_beside_one_claim_stays_in_its_pool_after_a_restart() -> None:
    node, claim = Driver(), part(1000, 0)
    node.prepare(claim)
    first, second = user(claim, milli=2500), user(claim, milli=2500)
    node.create(first)
    node.create(second)
    assert (node.pool(first), node.pool(second)) == ("NUMA node #0", "socket #0")
    node.stop(first)
    assert _restarted(node, second.id).grant(second) == node.grant(second)


def test_the_memory_of_a_container_with_a_claim_stays_where_it_is() -> None:
    node, claim = Driver("package:2 numa:2(memory=1GiB) core:2 pu:2"), part(2000, 1)
    node.prepare(claim)
    other, container = (
        replace(each, resources=replace(each.resources, memory_limit=700 << 20))
        for each in (user(claim, milli=1000), user(claim, milli=1000))
    )
    node.create(other)
    node.create(container)
    assert node.mems(container) == "0-1"
    node.stop(other)
    node.reconfigure(packing="tight")
    assert node.mems(container) == "0-1"
    assert not node.decision.changes
    again = _restarted(node, container.id)
    assert again.grant(container) == node.grant(container)
    assert again.notes(container.id) == node.notes(container.id)


def test_a_claim_without_container_comes_back_too_and_one_that_ended_does_not() -> None:
    node, idle, ended = Driver(), part(2000, 1), part(2000, 2, claim="ended")
    node.prepare(idle)
    node.prepare(ended)
    container = user(ended)
    node.create(container)
    node.unprepare(ended)
    again = _restarted(node)
    assert [*again.engine.state.claims] == [idle.id]


def test_a_container_whose_claim_is_forgotten_goes_on_without() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    container = user(claim, milli=1000)
    node.create(container)
    again = Driver()
    view = view_of(node.engine)
    listed = nodes.running(view.placed[container.id].container, *view.sent[container.id])
    again.handle(Synchronized(containers=(listed,)))
    assert not again.engine.state.placed[container.id].container.claims


def test_a_claim_keeps_what_is_left_when_cpus_go_and_gets_others_of_its_device() -> None:
    node, claim = Driver(), part(2000, 1)
    node.prepare(claim)
    container = user(claim)
    node.create(container)
    machine = node.engine.layout.machine
    node.reconfigure(machine=with_cpus(machine, machine.online - CPUSet([4])))
    assert node.cpus(container) == "5-6"
    node.reconfigure(machine=with_cpus(machine, machine.online - CPUSet.parse("4,6-7")))
    assert node.cpus(container) == "5"
    node.reconfigure(machine=with_cpus(machine, machine.online - NODE_1))
    assert "offline" in node.notes(container.id)[-1]
    assert CPUSet.parse(node.cpus(container)) <= machine.online - NODE_1
    node.reconfigure(machine=machine)
    assert node.cpus(container) == "4-5"


def test_settings_that_take_a_claims_cpus_are_refused() -> None:
    node, claim = Driver(), part(4000, 1)
    node.prepare(claim)
    from nri_policy.engine.event import Reconfigured  # noqa: PLC0415

    settings = nodes.settings(reservedResources={"cpu": "cpuset:4"})
    assert "has 3 of 4 CPU" in node.refuse(Reconfigured(settings=settings))
    node.reconfigure(reservedResources={"cpu": "cpuset:0-1"})
    assert str(node.engine.state.claims[claim.id].grant.exclusive) == "4-7"


def test_settings_that_take_the_cpus_beside_a_claim_s_own_from_its_fraction_are_refused() -> None:
    node = Driver()
    node.prepare(part(500, 0, request="fraction"), part(2000, 0, request="cpus"))
    spec = {"reservedResources": {"cpu": 2}}
    text = node.refuse(Reconfigured(settings=nodes.settings(**spec)))
    assert text == "claim default/cpus (fraction): it has 0 of 500m CPU now"
