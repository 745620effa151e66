"""When a partition is tried again, by the plan alone."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import (
    Action,
    ActionBegan,
    ActionEnded,
    CpusetsTouched,
    Event,
    PartitionsSettled,
    PhaseChanged,
    Report,
    TimePassed,
)
from nri_policy.delivery.partition_files import PartitionOutcome
from nri_policy.delivery.partition_records import CALM, MAX_TRIES, PAUSE, SETTLE
from nri_policy.delivery.record import Phase
from nri_policy.engine.grant import Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import ExclusivePartitions

ID = "owner"
CPUS = CPUSet([2, 3])
DUE = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUS)
NONE_BEFORE = PartitionOutcome(held=DUE, lost="member was written")
HOLDS = PartitionOutcome(held=DUE)
LOST = PartitionOutcome(held=DUE, lost="Cpu list in cpuset.cpus not exclusive")


class OneOwner(Desired):
    """One container, with a partition due."""

    def __init__(self) -> None:
        """Take no node."""

    def __iter__(self) -> Iterator[str]:
        return iter([ID])

    def placement(self, container_id: str) -> Placement | None:
        return (
            None if container_id != ID else Placement(cpus=CPUS, mems=CPUS, shares=None, cause="")
        )

    def partition(self, container_id: str) -> Partition | None:
        return DUE if container_id == ID else None

    def own(self, container_id: str) -> CPUSet:
        return CPUS if container_id == ID else CPUSet()


class Kernel:
    """Says what becomes of the partition, at the times of the plan."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = DeliveryState(OneOwner(), has_files=True)

    def look(self, outcome: PartitionOutcome | None) -> list[Report]:
        """Have a look come to this, where the container is looked at."""
        records = self.state.kernel_partitions
        self.state.apply(ActionBegan(Action.PARTITIONS), self.now)
        self.state.apply(TimePassed(), self.now)
        if rest := records.rest(ID):
            ended = ActionEnded(action=Action.PARTITIONS, pause=rest)
            return [*self.state.apply(ended, self.now)]
        wanted = records.wanted([ID], is_blocked=lambda *_: False)
        outcomes = {} if outcome is None else {ID: outcome}
        event = PartitionsSettled(wanted=wanted, outcomes=outcomes)
        return [*self.state.apply(event, self.now)]

    def next_look(self) -> float | None:
        """Let the time come of the next look; return in how many seconds, None if there is none."""
        at = self.state.plan(self.now).get(Action.PARTITIONS)
        if at is None:
            return None
        pause, self.now = at - self.now, at
        return round(pause, 3)

    def touch(self) -> None:
        """Have something be written to a file of the container."""
        self.state.apply(CpusetsTouched(partitions=True), self.now)


def test_writes_matter_only_where_there_is_a_partition_or_may_be_one() -> None:
    kernel = Kernel()
    kernel.state.apply(CpusetsTouched(), kernel.now)
    assert kernel.next_look() is None
    kernel.touch()
    assert kernel.next_look() == SETTLE
    kernel.look(NONE_BEFORE)
    kernel.state.apply(CpusetsTouched(), kernel.now)
    assert kernel.next_look() == SETTLE


def test_a_container_that_is_to_be_one_is_looked_at_when_it_runs() -> None:
    kernel = Kernel()
    kernel.state.apply(PhaseChanged(container_id=ID, phase=Phase.RUNNING), kernel.now)
    assert kernel.next_look() == SETTLE


def test_a_container_without_a_cgroup_is_not_looked_at_again_and_again() -> None:
    kernel = Kernel()
    kernel.look(None)
    assert kernel.next_look() is None
    assert kernel.state.kernel_partitions.count()["missing"] == 0, "it does not run yet"


def test_one_that_was_made_is_at_rest() -> None:
    kernel = Kernel()
    kernel.look(NONE_BEFORE)
    assert kernel.next_look() is None
    assert kernel.state.kernel_partitions.is_in_force(ID)


def test_one_that_was_lost_once_is_looked_at_until_it_is_calm() -> None:
    kernel = Kernel()
    kernel.look(NONE_BEFORE)
    kernel.look(LOST)
    assert kernel.next_look() == PAUSE
    kernel.look(HOLDS)
    assert kernel.next_look() == CALM
    kernel.look(HOLDS)
    assert kernel.next_look() is None
    assert kernel.state.kernel_partitions.state(ID).tries == 0


def test_one_that_is_lost_again_and_again_is_made_again_with_pauses_and_given_up() -> None:
    kernel, pauses, reports = Kernel(), [], list[Report]()
    kernel.look(NONE_BEFORE)
    records = kernel.state.kernel_partitions
    while not reports:
        began = kernel.now
        kernel.touch()
        tries = records.state(ID).tries
        while records.state(ID).tries == tries:
            assert kernel.next_look() is not None
            reports = kernel.look(LOST)
        pauses.append(round(kernel.now - began, 3))
    assert pauses == [SETTLE, *(PAUSE * 2**n for n in range(MAX_TRIES - 1))]
    (report,) = reports
    assert (report.event, report.error) == (Event.NO_PARTITION, LOST.lost)
    assert records.wanted([ID], is_blocked=lambda *_: False) == {ID: None}, "nothing is left of it"
    assert kernel.next_look() == 0.0
    kernel.look(PartitionOutcome())
    assert records.has_failed(ID)
    assert kernel.next_look() is None
