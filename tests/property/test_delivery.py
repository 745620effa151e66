"""Random histories of deliveries: what is next follows from the records, and must end.

The runtime, the kernel and systemd of these histories do anything at any time, so nothing is said
about where containers run; `tests/model` and `tests/loop` do that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random

from nri_policy.delivery import inputs
from nri_policy.delivery.cpuset_checks import gaining, leaving
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.partition_files import PartitionOutcome
from nri_policy.delivery.record import NO_PARTITION, Cpuset, Phase
from nri_policy.delivery.record_table import NEW
from nri_policy.engine.grant import Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.pod import Resources
from tests.property.seeds import seeds

IDS = ("a", "b", "c", "d")
SETS = tuple(map(CPUSet.parse, ("0", "0-1", "1-2", "2-3", "0-3")))
MEMS = CPUSet([0])


class Books(Desired):
    """Decisions that a history makes up: the first two containers may own CPU 0."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.placements: dict[str, Placement] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.placements)

    def decide(self) -> dict[str, Placement]:
        """Decide anew on some containers that may be new."""
        some = self.random.sample(IDS, self.random.randint(1, len(IDS)))
        shares = self.random.choice((None, None, 512))
        change = Placement(cpus=self.random.choice(SETS), mems=MEMS, shares=shares, cause="history")
        changes = dict.fromkeys(some, change)
        self.placements |= changes
        return changes

    def placement(self, container_id: str) -> Placement | None:
        return self.placements.get(container_id)

    def partition(self, container_id: str) -> Partition | None:
        if container_id not in IDS[:2]:
            return None
        return Partition(kind=ExclusivePartitions.ROOT, cpus=SETS[0])

    def unmanaged(self, container_id: str) -> Placement:  # noqa: ARG002 - the signature
        return Placement(cpus=SETS[-1], mems=MEMS, shares=None, cause="leaves")

    def own(self, container_id: str) -> CPUSet:
        return SETS[0] if container_id in IDS[:2] else EMPTY


class History:
    """Something happens, again and again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.books = Books(self.random)
        self.state = DeliveryState(self.books, has_files=True)
        self.now = 100.0
        self.moves: tuple[Callable[[], None], ...] = (
            self.decide,
            self.begin_request,
            self.answer,
            self.enter,
            self.write,
            self.check,
            self.send,
            self.inform,
            self.list,
            self.settle,
            self.end,
            self.other,
        )

    def apply(self, event: inputs.Input) -> None:
        self.state.apply(event, self.now)

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.01, 0.5, 3.0, 70.0))
        self.random.choice(self.moves)()

    def any_id(self) -> str:
        return self.random.choice(IDS)

    def decide(self) -> None:
        hurry = self.random.random() < 0.2
        self.apply(inputs.Decided(changes=self.books.decide(), hurry=hurry))

    def begin_request(self) -> None:
        self.apply(inputs.RequestBegan())

    def answer(self) -> None:
        about, state = self.any_id(), self.state
        updates = state.answer(about, self.random.randint(0, 2), self.now)
        assert about not in updates
        own = self.books.placement(about) if self.random.random() < 0.5 else None
        creating = own is not None and self.random.random() < 0.5
        event = inputs.Answered(about=about, own=own, creating=creating, updates=updates)
        self.apply(event)
        assert not updates.keys() & state.pending.keys()

    def enter(self) -> None:
        phase = self.random.choice([*Phase])
        event = inputs.PhaseChanged(container_id=self.any_id(), phase=phase)
        self.apply(event)

    def write(self) -> None:
        state = self.state
        self.apply(inputs.ActionBegan(inputs.Action.WRITE))
        shrinking = self.random.random() < 0.5
        ids = state.shrink() if shrinking else state.grow([*state.by_file])
        for each in ids:
            change = state.latest_change(each)
            if change is None:
                continue
            state.giving = {} if shrinking else {each: change.cpus}
            cpus = self.random.choice((change.cpus, change.cpus, SETS[0], None))
            error = "busy" if cpus is not None and cpus != change.cpus else ""
            self.apply(inputs.Written(container_id=each, placement=change, cpus=cpus, error=error))
            state.giving = {}
        self.apply(inputs.ActionEnded(action=inputs.Action.WRITE))

    def check(self) -> None:
        self.apply(inputs.ActionBegan(inputs.Action.READ))
        checks = self.state.begin_check(self.any_id())
        for each in checks:
            cpus = self.random.choice((each.placement.cpus, *SETS))
            each.see(self.random.choice((None, Resources(cpus=str(cpus), mems="0"))))
        for one in (*leaving(checks, SETS[0]), *gaining(checks, self.state.kept)):
            one.cpus, one.written = one.placement.cpus, True
            one.error = self.random.choice(("", "", "busy"))
        self.apply(inputs.Checked(checks=checks))
        self.apply(inputs.ActionEnded(action=inputs.Action.READ))

    def send(self) -> None:
        sent = self.state.changes_to_send()
        failed = [each for each in sent if self.random.random() < 0.3]
        self.apply(inputs.CallEnded(changes=sent, failed=failed))
        self.apply(inputs.ActionEnded(action=inputs.Action.SEND))

    def inform(self) -> None:
        chosen = self.state.inform(1)
        self.apply(inputs.CallSent(changes=chosen))
        if self.random.random() < 0.3:
            self.apply(inputs.CallLost(changes=chosen))
        else:
            self.apply(inputs.CallEnded(changes=chosen, informing=True))

    def list(self) -> None:
        if self.random.random() < 0.7:
            return
        cpusets = {each: Cpuset(cpus=self.random.choice(SETS), mems=MEMS) for each in IDS}
        there = [each for each in IDS if self.random.random() < 0.8]
        self.books.placements = {
            each: new for each, new in self.books.placements.items() if each in there
        }
        self.apply(
            inputs.Listed(
                recorded={each: self.random.choice([*cpusets.values()]) for each in there},
                observed={each: cpusets[each] for each in there if self.random.random() < 0.8},
            )
        )
        changes = {each: new for each, new in self.books.placements.items() if each in there}
        self.apply(
            inputs.Registered(
                phases={each: self.random.choice([*Phase]) for each in there},
                changes=changes if self.random.random() < 0.5 else {},
                unseen={},
                listed=changes,
                new=[each for each in there if self.random.random() < 0.3],
            )
        )

    def settle(self) -> None:
        wanted = self.state.kernel_partitions.wanted(
            [self.any_id()], is_blocked=lambda *_: self.random.random() < 0.3
        )
        outcomes = {
            each: PartitionOutcome(
                held=self.random.choice((new, new, None)), error=self.random.choice(("", "busy"))
            )
            for each, new in wanted.items()
            if self.random.random() < 0.8
        }
        self.apply(inputs.PartitionsSettled(wanted=wanted, outcomes=outcomes))

    def end(self) -> None:
        gone = self.any_id()
        self.books.placements.pop(gone, None)
        self.apply(inputs.Gone(gone))

    def other(self) -> None:
        each = self.any_id()
        trouble = self.random.choice(("", "Read-only file system"))
        asked = self.state.records.get(each, NEW).observed
        event: inputs.Input = self.random.choice(
            (
                inputs.ScopeSet(container_id=each, asked=asked, error=trouble),
                inputs.ResizeDoubted(container_id=each, refused=Resources()),
                inputs.ResizeSettled(container_id=each),
                inputs.ResizeConfirmed(container_id=each),
                inputs.ResizeTakenBack(container_id=each),
                inputs.StartAnswered(each),
                inputs.ActionEnded(action=inputs.Action.RESIZES),
                inputs.ActionEnded(action=inputs.Action.QUOTAS),
                inputs.PodsChanged(pod_ids=[each]),
                inputs.QuotaWritten(pod_id=each, quota=-1, before=100_000),
                inputs.PodGone(each),
                inputs.WritesMissed(),
                inputs.Rechecked(),
                inputs.Probed(proven=not trouble, error=trouble),
                inputs.OverlapsSeen(container_ids=[each]),
                inputs.TimePassed(),
            )
        )
        self.apply(event)


def indexes(state: DeliveryState) -> dict[str, set[str]]:
    """Return the indexes as the records alone say."""
    records = state.records.items()
    return {
        "pending": {each for each, known in records if known.pending is not None},
        "by_file": {each for each, known in records if state.is_by_file(known)},
        "waiting": {
            each for each, known in records if known.pending and not state.is_by_file(known)
        },
        "in_flight": {each for each, known in records if known.in_flight is not None},
        "unrecorded": {each for each, known in records if known.unrecorded is not None},
        "volatile": {each for each, known in records if not known.persistent},
        "unwritable": {each for each, known in records if known.failed_at is not None},
        "late": {each for each, known in records if known.late},
        "refused": {each for each, known in records if known.refused is not None},
        "resizes": {each for each, known in records if known.resize_until is not None},
        "partitions": {each for each, known in records if known.partition != NO_PARTITION},
        "overlapping": {each for each, known in records if known.overlap},
        "busy": {
            each for each, known in records if known.phase in {Phase.STARTING, Phase.UPDATING}
        },
        "starting": {
            each
            for each, known in records
            if known.phase is Phase.STARTING and known.started_at is not None
        },
        "carried": {each for each, known in records if known.carrier},
    }


def missing(state: DeliveryState, due: Mapping[inputs.Action, float]) -> set[inputs.Action]:
    """Return the actions that are next for some container, and not planned."""
    runs = [each for each in state.in_flight if state.phase(each) is Phase.RUNNING]
    runs += state.starting
    wanted = {
        inputs.Action.WRITE: state.by_file,
        inputs.Action.READ: runs,
        inputs.Action.SEND: state.waiting,
        inputs.Action.PERSIST: state.volatile,
        inputs.Action.INFORM: state.unrecorded,
        inputs.Action.RESIZES: state.resizes,
        inputs.Action.QUOTAS: state.pod_quotas.doubtful,
    }
    return {action for action, ids in wanted.items() if ids} - due.keys()


@seeds(300)
def test_what_is_next_follows_from_the_records(seed: int) -> None:
    history = History(seed)
    for _ in range(60):
        history.step()
        state = history.state
        for each in state.records.values():
            each.check()
        history.apply(inputs.Rechecked())  # failures that are over count again
        kept = {name: {*getattr(state, name)} for name in indexes(state) if name != "carried"}
        kept["carried"] = {each for ids in state.carried.values() for each in ids}
        assert kept == indexes(state)
        assert state.by_file.keys() | state.waiting.keys() == state.pending.keys()
        next_due = state.next_due()
        history.apply(inputs.TimePassed())
        due = state.plan(history.now)
        earliest = min(due.values(), default=math.inf)
        # infinitely early: time must pass first
        assert next_due == -math.inf or max(next_due, history.now) == earliest
        assert all(math.isfinite(at) for at in due.values())
        assert not missing(state, due), "what is next for a container is planned"
