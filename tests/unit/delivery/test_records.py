"""What is known about containers, and what follows from it: records, without anybody's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from unittest.mock import AsyncMock

import pytest

from nri_policy.delivery.cpuset_checks import CpusetCheck
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import (
    Action,
    ActionBegan,
    ActionEnded,
    Answered,
    CallEnded,
    CallLost,
    CallSent,
    Checked,
    Decided,
    Event,
    Gone,
    Input,
    Listed,
    Observed,
    OverlapsSeen,
    PhaseChanged,
    Probed,
    Rechecked,
    Registered,
    RequestBegan,
    ResizeConfirmed,
    ResizeTakenBack,
    ScopeSet,
    StartAnswered,
    TimePassed,
    WritesMissed,
    Written,
)
from nri_policy.delivery.messages import Messages, NotSentError
from nri_policy.delivery.next_actions import FIRST_LOOK, MAX_TRIES
from nri_policy.delivery.observations import BLIND_GRACE, GRACE
from nri_policy.delivery.record import Cpuset, Phase
from nri_policy.engine.grant import Changes, Placement
from nri_policy.foundation.clock import SYSTEM_CLOCK
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources


def placement(cpus: str, mems: str = "") -> Placement:
    return Placement(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems), shares=None, cause="")


def cpuset(cpus: str, mems: str = "0") -> Cpuset:
    return Cpuset(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems))


class Wanted(Desired):
    """Containers with placements, none with exclusive CPUs."""

    def __init__(self, **placements: Placement) -> None:
        self.placements = placements

    def __iter__(self) -> Iterator[str]:
        return iter(self.placements)

    def placement(self, container_id: str) -> Placement | None:
        return self.placements.get(container_id)

    def partition(self, container_id: str) -> None:
        """Return nothing: no container is to be a partition."""

    def own(self, container_id: str) -> CPUSet:  # noqa: ARG002 - the signature
        return EMPTY


def state_of(*names: str, cpus: str = "1") -> DeliveryState:
    """Return what is known of containers that are to have some CPUs: nothing yet."""
    wanted = Wanted(**{name: placement(cpus, "0") for name in names})
    return DeliveryState(wanted, has_files=True)


def apply(state: DeliveryState, *inputs: Input | float) -> None:
    """Have inputs come; a number is the time from then on, from 0 in the beginning."""
    now = max(state.now, 0.0)
    for each in inputs:
        if isinstance(each, float):
            now = each
            continue
        state.apply(each, now)
        for record in state.records.values():
            record.check()


def created(name: str, cpus: str, mems: str = "") -> Answered:
    return Answered(about=name, own=placement(cpus, mems), creating=True)


def written(name: str, cpus: str, mems: str = "") -> Written:
    return Written(container_id=name, placement=placement(cpus, mems), cpus=CPUSet.parse(cpus))


def since(state: DeliveryState) -> dict[str, float | None]:
    """Return since when the runtime records another cpuset, by container."""
    return {each: state.records[each].unrecorded for each in state.unrecorded}


def test_who_is_written_is_to_be_informed_of_until_that_is_done_or_undone() -> None:
    state = state_of("a", "b")
    apply(state, created("a", "1-3", "0"), created("b", "1-3", "0"))
    apply(state, 1.0, written("a", "1-2"), 2.0, written("b", "1"), 3.0, written("a", "1"))
    assert since(state) == {"a": 1.0, "b": 2.0}
    apply(state, 4.0, written("a", "1-3"))
    assert since(state) == {"b": 2.0}
    apply(state, 5.0, CallSent(changes={"b": placement("1", "0")}))
    assert not state.unrecorded
    assert state.records["a"].observed == cpuset("1-3")


def test_where_nobody_knows_what_the_runtime_records_it_is_informed() -> None:
    state = state_of("a")
    apply(state, created("a", "1-3"), 1.0, written("a", "1-2"))
    apply(state, 1.0, CallLost(changes={"a": placement("1-2")}), 1.0, written("a", "1-3"))
    assert since(state) == {"a": 1.0}


def test_memory_nodes_that_the_runtime_does_not_record_are_said_once() -> None:
    state = state_of("a")
    apply(state, Listed(recorded={"a": cpuset("1-3", "")}, observed={"a": cpuset("1-3")}))
    apply(state, 1.0, written("a", "1-3", "0"))
    assert since(state) == {"a": 1.0}
    apply(state, 1.0, CallSent(changes={"a": placement("1-3", "0")}))
    apply(state, 2.0, written("a", "1-3", "0"))
    assert not state.unrecorded


def registered(state: DeliveryState, *names: str, new: Collection[str] = ()) -> Registered:
    listed = {each: due for each in names if (due := state.desired.placement(each)) is not None}
    return Registered(
        phases=dict.fromkeys(names, Phase.RUNNING),
        changes={},
        unseen={},
        listed=listed,
        new=new,
    )


def test_a_list_shows_who_is_in_place_and_recorded_elsewhere() -> None:
    names = ("right", "behind", "wrong")
    state = state_of(*names)
    listed = {"right": cpuset("1"), "behind": cpuset("1-3"), "wrong": cpuset("1-3")}
    apply(state, Listed(recorded=listed, observed=listed | {"behind": cpuset("1")}))
    apply(state, 5.0, registered(state, *names))
    assert since(state) == {"behind": 5.0}


def test_what_an_earlier_daemon_wrote_may_be_undone() -> None:
    """It may have ended before systemd had heard of it."""
    state = state_of("a", "b")
    apply(
        state,
        Listed(
            recorded={"a": cpuset("1-3"), "b": cpuset("1")},
            observed={"a": cpuset("1"), "b": cpuset("1")},
        ),
        5.0,
        registered(state, "a", "b"),
    )
    assert [*state.volatile] == ["a"]


def test_what_an_earlier_daemon_wrote_may_be_undone_where_the_runtime_records_the_same() -> None:
    """It may have written what the runtime had recorded, after systemd was asked to keep less."""
    listed = {"a": cpuset("1"), "b": cpuset("1"), "any": cpuset("1")}
    state = state_of("a", "b")
    state.desired = Wanted(a=placement("1"), b=placement("1"), any=placement(""))
    apply(state, Listed(recorded=listed, observed=listed))
    apply(state, 5.0, registered(state, *listed, new=["b", "any"]))
    assert [*state.volatile] == ["b"]  # "any" may be anywhere
    assert not state.unrecorded


def test_a_look_that_writes_a_cgroup_shows_that_it_can_be_written() -> None:
    """Else its changes would go to the runtime for a minute, and it would count as not writable."""
    state = state_of("a")
    due = state.desired.placement("a")
    assert due is not None
    apply(
        state,
        0.0,
        PhaseChanged(container_id="a", phase=Phase.RUNNING),
        1.0,
        Written(container_id="a", placement=due, cpus=CPUSet.parse("1-3"), error="busy"),
    )
    assert [*state.unwritable] == ["a"]
    (check,) = state.begin_check("a")
    check.see(Resources(cpus="1", mems="0"))
    check.written = True
    apply(state, 2.0, Checked(checks=[check]))
    assert not state.unwritable


def test_a_cgroup_that_could_not_be_written_is_tried_again_after_a_minute() -> None:
    state = state_of("a")
    apply(state, Listed(recorded={"a": cpuset("1-3")}, observed={"a": cpuset("1-3")}))
    change = placement("1")
    apply(state, 0.0, Decided(changes={"a": change}))
    assert [*state.by_file] == ["a"]
    apply(
        state,
        0.0,
        Written(container_id="a", placement=change, cpus=CPUSet.parse("1-3"), error="busy"),
    )
    for now, by_file in ((59.9, []), (60.0, ["a"])):
        apply(state, now, Rechecked())
        assert [*state.by_file] == by_file


def test_what_a_lost_call_said_is_sent_again() -> None:
    state = state_of("a")
    apply(state, created("a", "1"), 1.0, CallSent(changes={"a": placement("1")}))
    assert not state.pending
    apply(state, 2.0, CallLost(changes={"a": placement("1")}))
    assert [*state.pending] == ["a"]


def test_what_a_call_failed_to_do_is_sent_again() -> None:
    state, change = state_of("a"), placement("1")
    apply(state, 0.0, Decided(changes={"a": change}))
    apply(state, 1.0, CallEnded(changes={"a": change}, failed=["a"]))
    assert [*state.pending] == ["a"]
    assert not state.refused


class ListingLink:
    """A runtime that gives no result of calls, and can be asked to list its containers."""

    calls_are_safe: bool | None = True
    synchronized = idle = True

    def __init__(self) -> None:
        self.missing = asyncio.Event()
        self.registered = 0

    def fitting(self, changes: Changes) -> Changes:
        return changes

    async def call(self, *_: object, **_options: object) -> Collection[str]:
        raise NotSentError

    def register(self, *, needed: bool) -> bool:
        self.registered += 1
        return not needed


async def test_after_a_call_without_a_result_the_runtime_is_asked_for_its_list() -> None:
    """Only it knows what became of the call; nothing counts as failed."""
    state, link = state_of("a"), ListingLink()
    apply(state, Decided(changes={"a": placement("1")}))
    messages = Messages(state, lambda event: apply(state, event), SYSTEM_CLOCK, AsyncMock())
    await messages.send(link)
    assert link.registered == 1
    assert [*state.waiting] == ["a"]
    assert not state.records["a"].attempts


@pytest.mark.parametrize(("safe", "synchronized"), [(None, True), (False, False)])
async def test_nothing_is_sent_before_it_is_known_what_the_runtime_survives(
    *, safe: bool | None, synchronized: bool
) -> None:
    state, link = state_of("a"), ListingLink()
    link.calls_are_safe, link.synchronized = safe, synchronized
    apply(state, Decided(changes={"a": placement("1")}))
    await Messages(state, lambda event: apply(state, event), SYSTEM_CLOCK, AsyncMock()).send(link)
    assert link.registered == 0
    assert [*state.waiting] == ["a"]


def test_what_the_answer_about_a_container_says_of_it_systemd_keeps() -> None:
    state = state_of("a")
    apply(state, created("a", "1-3"), 1.0, written("a", "1"))
    assert [*state.volatile] == ["a"]
    apply(state, 2.0, Answered(about="a", own=placement("1-2", "0")))
    assert not state.volatile


def test_what_a_batch_may_give_is_taken_back_by_whatever_comes_next() -> None:
    """By a file, or by an answer that cannot wait for it."""
    state = state_of("a", "b")
    names = {each: cpuset("1") for each in ("a", "b")}
    apply(state, Listed(recorded=names, observed=names))
    apply(state, Decided(changes=dict.fromkeys(names, placement("1"))))
    state.giving = {"a": CPUSet.parse("1-3"), "b": CPUSet.parse("1")}
    assert state.shrink() == ["a"]
    apply(state, WritesMissed())
    assert [*state.waiting] == ["a"]


def test_only_what_a_file_still_brings_grows() -> None:
    """An answer can have carried it since the batch was put together."""
    state = state_of("a", "b", cpus="1-2")
    names = {each: cpuset("1") for each in ("a", "b")}
    apply(state, Listed(recorded=names, observed=names))
    apply(state, Decided(changes=dict.fromkeys(names, placement("1-2"))))
    assert state.grow(["a", "b"]) == ["a", "b"]
    apply(state, Answered(about="other", updates={"a": placement("1-2")}))
    assert state.grow(["a", "b"]) == ["b"]


def test_what_is_decided_anew_during_a_call_is_sent_again() -> None:
    state, change = state_of("a", cpus="2"), placement("1")
    apply(state, 0.0, Decided(changes={"a": change}))
    apply(state, 1.0, CallEnded(changes={"a": change}))
    assert state.changes_to_send() == {"a": state.desired.placement("a")}


def test_what_overtakes_a_call_may_be_recorded_before_it() -> None:
    """A call only informs of "1-2", an answer to another request says "1", and a file has "1"."""
    state = state_of("a")
    apply(
        state,
        created("a", "1-2"),
        1.0,
        CallSent(changes={"a": placement("1-2")}),
        2.0,
        Answered(about="b", updates={"a": placement("1")}),
        3.0,
        CallEnded(changes={"a": placement("1-2")}, informing=True),
        4.0,
        written("a", "1"),
    )
    assert since(state) == {"a": 4.0}


def test_the_end_of_a_resize_makes_no_record_of_a_container_that_is_gone() -> None:
    state = state_of("a")
    apply(state, created("a", "1"), ResizeConfirmed(container_id="gone"))
    assert [*state.records] == ["a"]


def test_a_resize_that_ends_during_a_call_may_be_recorded_after_it() -> None:
    """What it has set is not known: the call's "1" is heard of last, and a file has "1"."""
    state = state_of("a")
    apply(
        state,
        created("a", "1", "0"),
        1.0,
        PhaseChanged(container_id="a", phase=Phase.UPDATING),
        ActionBegan(Action.SEND),
        2.0,
        ResizeConfirmed(container_id="a"),
        3.0,
        CallEnded(changes={"a": placement("1", "0")}),
        4.0,
        written("a", "1", "0"),
    )
    assert since(state) == {"a": 4.0}


def test_memory_nodes_that_a_failed_resize_has_set_are_put_back() -> None:
    state = state_of("a")
    due = placement("1", "0")
    apply(
        state,
        created("a", "1", "0"),
        Observed(container_id="a", cpuset=cpuset("1", "0")),
        2.0,
        PhaseChanged(container_id="a", phase=Phase.UPDATING),
        6.0,
        ResizeTakenBack(container_id="a", mems=CPUSet([1])),
        6.0,
        Decided(changes={"a": due}),
    )
    assert state.records["a"].observed == cpuset("1", "1")
    assert state.changes_to_send() == {"a": due}


def test_the_runtime_is_informed_first_of_those_that_systemd_may_undo() -> None:
    state = state_of("a", "b", "c")
    for name in ("a", "b", "c"):
        apply(
            state,
            created(name, "1-3"),
            0.0,
            PhaseChanged(container_id=name, phase=Phase.RUNNING),
        )
        checks = state.begin_check(name)
        for each in checks:
            each.see(Resources(cpus="1", mems="0"))
        apply(state, 0.0, Checked(checks=checks), 1.0, written(name, "1"))
    for name in ("a", "c"):
        asked = state.records[name].observed
        apply(state, 1.0, ScopeSet(container_id=name, asked=asked, error=""))
    assert [*state.inform(3)] == ["b", "a", "c"]
    apply(state, 1.0, CallSent(changes={"b": placement("1")}))
    assert not state.volatile
    assert [*state.inform(3)] == ["a", "c"]


def test_where_nothing_can_be_written_that_is_tried_again_after_a_minute() -> None:
    state = state_of("a")
    apply(state, 5.0, Probed(error="Read-only file system"))
    assert state.plan(5.0) == {Action.WRITE: 65.0, Action.READ: 5.0}
    assert state.misses_starts, "so that the daemon registers again"
    state.hears_starts = True
    apply(state, ActionBegan(Action.READ), Probed(error="Read-only file system"))
    assert state.plan(5.0) == {Action.WRITE: 65.0}
    assert (state.probe_is_due(64.9), state.probe_is_due(65.0)) == (False, True)


def test_what_is_gone_or_was_never_seen_is_not_known() -> None:
    state = state_of("a")
    apply(state, created("a", "1"), 1.0, written("a", "2"), 1.0, Gone(container_id="a"))
    assert not state.records
    assert not any((state.unrecorded, state.volatile, state.in_flight))
    apply(state, Observed(container_id="a", cpuset=cpuset("1")))
    apply(state, Observed(container_id="a", cpuset=None))
    assert state.records["a"].observed is None


def test_what_has_ended_during_a_call_is_forgotten_with_the_next_look() -> None:
    state = state_of("a")
    apply(state, 1.0, CallEnded(changes={"gone": placement("1")}))
    assert [*state.in_flight] == ["gone"]
    apply(state, 1.0, Checked(checks=state.begin_check()))
    assert not state.records


@pytest.mark.parametrize("phase", Phase)
def test_an_update_is_lost_unless_the_container_just_runs(phase: Phase) -> None:
    state = state_of("a", "other")
    apply(state, 0.0, PhaseChanged(container_id="a", phase=phase))
    apply(state, 1.0, CallSent(changes={"a": placement("1"), "other": placement("1")}))
    assert state.may_be_lost("a") == (phase is not Phase.RUNNING)
    assert not state.may_be_lost("other")
    apply(state, 1.0, PhaseChanged(container_id="a", phase=Phase.RUNNING))
    assert state.may_be_lost("a") == (phase is not Phase.RUNNING), "until it is seen"
    checks = state.begin_check("a")
    for each in checks:
        each.see(Resources(cpus="1", mems="0") if each.container_id == "a" else None)
    apply(state, 1.0, Checked(checks=checks))
    assert not state.may_be_lost("a")
    assert [*state.in_flight] == ["other"]


def test_the_answer_about_a_container_itself_is_not_lost() -> None:
    state = state_of("a")
    apply(state, 0.0, PhaseChanged(container_id="a", phase=Phase.CREATING), created("a", "1"))
    assert not state.may_be_lost("a")
    apply(state, 2.0, CallSent(changes={"a": placement("1")}))
    assert state.may_be_lost("a")


@pytest.mark.parametrize("hears_starts", [True, False])
def test_a_container_that_is_listed_unstarted_may_lack_what_was_sent_during_its_start(
    *, hears_starts: bool
) -> None:
    """Where no look can tell whether it was told to start before."""
    state = state_of("a")
    state.hears_starts = hears_starts
    listed, phases = {"a": placement("1", "0")}, {"a": Phase.CREATED}
    apply(
        state,
        Listed(recorded={"a": cpuset("1")}, observed={}),
        Registered(phases=phases, changes={}, unseen={}, listed=listed, new=()),
    )
    assert state.may_be_lost("a") == hears_starts


def looked_at(state: DeliveryState, cpus: str) -> Checked:
    """Return a look at all in flight, each with these CPUs."""
    checks = state.begin_check()
    for each in checks:
        each.see(Resources(cpus=cpus, mems="0"))
    return Checked(checks=checks)


def listed_as_created() -> DeliveryState:
    """Return what is known of a container that a list shows as created, and that was sent more."""
    state = state_of("a")
    state.hears_starts = False
    changes = {"a": placement("1", "0")}
    apply(
        state,
        Listed(recorded={"a": cpuset("1")}, observed={}),
        Registered(phases={"a": Phase.CREATED}, changes=changes, unseen={}, listed=changes, new=()),
        CallSent(changes=changes),
    )
    return state


def test_a_look_that_comes_after_a_slow_list_finds_what_may_have_been_told_to_start() -> None:
    """Or the runtime would never hear what is written to it."""
    state = listed_as_created()
    apply(state, 1.0, looked_at(state, "1"))
    assert state.phase("a") is Phase.STARTING
    apply(state, 1.0 + FIRST_LOOK, looked_at(state, "1"))
    assert state.phase("a") is Phase.RUNNING


def test_the_ends_of_starts_are_asked_for_where_one_may_have_been_missed_unseen() -> None:
    state = listed_as_created()
    look(state, BLIND_GRACE / 2, "")
    assert not state.misses_starts
    assert state.plan(BLIND_GRACE / 2)[Action.READ] <= BLIND_GRACE, "it is looked at again"
    look(state, BLIND_GRACE + 0.1, "")
    assert state.misses_starts


def test_the_runtime_may_not_have_recorded_what_was_lost_and_is_written_then() -> None:
    state = state_of("a")
    apply(
        state,
        Listed(recorded={"a": cpuset("1-2")}, observed={"a": cpuset("1-2")}),
        PhaseChanged(container_id="a", phase=Phase.CREATING),
        Decided(changes={"a": placement("1", "0")}),
        CallSent(changes={"a": placement("1", "0")}),
        Written(container_id="a", placement=placement("1", "0"), cpus=CPUSet.parse("1"), error=""),
    )
    assert [*state.unrecorded] == ["a"]


def test_a_look_shows_that_an_answer_has_arrived_unless_a_file_had_set_it() -> None:
    """The answer would undo what a file sets before that (nri.md §3.7a 10)."""
    state = state_of("written", "sent")
    informed = {each: placement("1", "0") for each in ("written", "sent")}
    apply(
        state,
        Observed(container_id="written", cpuset=cpuset("1")),
        Observed(container_id="sent", cpuset=cpuset("1-3")),
        1.0,
        RequestBegan(),
        1.0,
        Answered(about="other", updates=informed),
    )
    assert {*state.in_flight} == {"sent", "written"}
    apply(state, 1.5, looked_at(state, "1"))
    assert [*state.in_flight] == ["written"]


def test_a_look_that_writes_does_not_show_that_an_answer_has_arrived() -> None:
    state = state_of("a")
    answer = Answered(about="other", updates={"a": placement("1", "0")})
    apply(state, Observed(container_id="a", cpuset=cpuset("1-3")), 1.0, RequestBegan(), answer)
    look = looked_at(state, "1")
    look.checks[0].written = True
    apply(state, 1.5, look, 1.6, looked_at(state, "1"))
    assert state.in_flight


@pytest.mark.parametrize("then", [(2.0, RequestBegan()), (1.0 + GRACE + 0.1, TimePassed())])
def test_an_answer_has_arrived_with_the_next_request_or_after_a_while(
    then: tuple[float, Input],
) -> None:
    state = state_of("a")
    answer = Answered(about="other", updates={"a": placement("1", "0")})
    apply(state, Observed(container_id="a", cpuset=cpuset("1")), 1.0, RequestBegan(), answer)
    apply(state, 1.5, looked_at(state, "1"))
    assert state.in_flight
    apply(state, *then)
    apply(state, looked_at(state, "1"))
    assert not state.in_flight


def test_a_change_that_does_not_come_into_force_is_sent_again_and_given_up_in_the_end() -> None:
    state = state_of("a")
    told = Answered(about="other", updates={"a": placement("1", "0")})
    apply(state, PhaseChanged(container_id="a", phase=Phase.RUNNING))
    apply(state, Observed(container_id="a", cpuset=cpuset("1-3")))
    said, now = [], 0.0
    for _ in range(MAX_TRIES):
        apply(state, now, RequestBegan(), told)
        assert [*state.in_flight] == ["a"]
        apply(state, now + GRACE, looked_at(state, "1-3"))
        assert [*state.in_flight] == ["a"], "it may still come"
        now += GRACE + 0.1
        said += [each.event for each in state.apply(looked_at(state, "1-3"), now)]
        assert not state.in_flight
        assert bool(state.pending) is (said[-1] is Event.SENT_AGAIN)
    assert said == [Event.SENT_AGAIN] * (MAX_TRIES - 1) + [Event.NOT_IN_FORCE]
    assert [*state.refused] == ["a"]


def test_a_file_brings_what_the_next_request_changes_of_what_an_answer_said() -> None:
    state = state_of("a")
    answer = Answered(about="other", updates={"a": placement("1", "0")})
    started = PhaseChanged(container_id="a", phase=Phase.RUNNING)
    apply(state, started, Observed(container_id="a", cpuset=cpuset("1")), answer)
    apply(state, 1.5, Decided(changes={"a": placement("2")}))
    assert [*state.waiting] == ["a"], "the answer may not have arrived"
    apply(state, 1.6, RequestBegan(), 1.6, Decided(changes={"a": placement("3")}))
    assert [*state.by_file] == ["a"]


def test_the_next_request_says_that_the_answers_before_were_handled() -> None:
    """Where no cgroup shows it."""
    state = state_of("a")
    apply(state, 1.0, RequestBegan(), 1.0, CallSent(changes={"a": placement("1")}))
    apply(state, 1.0, Checked(checks=state.begin_check()))
    assert state.in_flight
    apply(state, 1.0, RequestBegan(), 1.0, Checked(checks=state.begin_check()))
    assert not state.in_flight


def test_what_was_before_a_list_is_forgotten() -> None:
    state = state_of("a", "c", "d")
    apply(state, 0.0, PhaseChanged(container_id="a", phase=Phase.STARTING))
    apply(state, 1.0, CallSent(changes={"a": placement("1"), "b": placement("1")}))
    apply(state, 1.0, Gone(container_id="a"))
    assert state.phase("a") is Phase.RUNNING
    phases = {"c": Phase.CREATED, "d": Phase.RUNNING}
    apply(state, 2.0, Registered(phases=phases, changes={}, unseen={}, listed={}, new=()))
    assert not state.in_flight
    assert [(each, state.phase(each)) for each in state.records] == [*phases.items()]


@pytest.mark.parametrize(("phase", "persistent"), [(Phase.STARTING, False), (Phase.RUNNING, True)])
def test_what_the_runtime_may_lose_is_not_kept_by_systemd(phase: Phase, persistent: bool) -> None:
    state = state_of("a")
    apply(state, created("a", "1-3"), 1.0, written("a", "1"))
    apply(state, 2.0, PhaseChanged(container_id="a", phase=phase))
    apply(state, 3.0, CallSent(changes={"a": placement("1")}))
    assert state.records["a"].persistent == persistent


def test_what_systemd_may_undo_is_told_once() -> None:
    """It is persistent no sooner, but the runtime records it."""
    state = state_of("a")
    apply(state, created("a", "1-3"), 1.0, written("a", "1"))
    apply(state, 2.0, PhaseChanged(container_id="a", phase=Phase.STARTING))
    apply(state, 3.0, CallSent(changes={"a": placement("1", "0")}))
    apply(state, 4.0, PhaseChanged(container_id="a", phase=Phase.RUNNING))
    state.change("a", in_flight=None)
    assert [*state.volatile] == ["a"]
    assert state.inform(3) == {}


def test_nobody_knows_what_the_runtime_records_of_a_resize_that_is_taken_back() -> None:
    state = state_of("a")
    apply(state, created("a", "1"), 1.0, Answered(about="a", own=placement("1-2")))
    apply(state, 4.0, ResizeTakenBack(container_id="a"))
    assert state.records["a"].recorded is None
    apply(state, 5.0, written("a", "1-2"))
    assert since(state) == {"a": 5.0}


def test_nobody_knows_what_the_runtime_records_of_a_resize_that_comes_late() -> None:
    """It may be older than what the runtime was sent meanwhile."""
    state = state_of("a")
    apply(state, created("a", "1"), 1.0, Answered(about="a", own=placement("1-2")))
    apply(state, 4.0, ResizeTakenBack(container_id="a"), 5.0, written("a", "1"))
    apply(state, 6.0, CallSent(changes={"a": placement("1")}))
    assert state.records["a"].recorded == cpuset("1", "")
    apply(state, 7.0, ResizeConfirmed(container_id="a"))
    assert state.records["a"].recorded is None


def test_an_overlap_that_is_seen_no_more_is_forgotten() -> None:
    state = state_of("a")
    stuck = CpusetCheck(
        container_id="a",
        placement=placement("1", "0"),
        own=EMPTY,
        lost=False,
        settled=True,
        overlap=CPUSet([2]),
        error="Device or resource busy",
    )
    apply(state, created("a", "1"), Checked(checks=[stuck]), OverlapsSeen(container_ids=["a"]))
    assert [*state.overlapping] == ["a"]
    apply(state, OverlapsSeen(container_ids=[]))
    assert not state.overlapping


# ---- starts whose end the runtime does not tell


def entered(name: str, phase: Phase) -> PhaseChanged:
    return PhaseChanged(container_id=name, phase=phase)


def started(*, hears_starts: bool = False) -> DeliveryState:
    """Return what is known of a container whose START was answered at 1.0."""
    state = state_of("a", cpus="1-2")
    state.hears_starts = hears_starts
    apply(state, created("a", "1-2", "0"), 1.0, entered("a", Phase.STARTING), StartAnswered("a"))
    return state


def look(state: DeliveryState, now: float, found: str) -> None:
    """Look at all that there is a reason for; *found* is the cpuset of each, empty for none."""
    apply(state, now, ActionBegan(Action.READ))
    checks = state.begin_check()
    for each in checks:
        each.see(Resources(cpus=found, mems="0") if found else None)
    apply(state, Checked(checks=checks), ActionEnded(action=Action.READ))


def test_a_look_some_time_after_its_start_finds_that_a_container_runs() -> None:
    state = started()
    assert state.plan(1.0)[Action.READ] <= 1.0 + FIRST_LOOK
    look(state, 1.0 + FIRST_LOOK / 2, "1-2")
    assert state.phase("a") is Phase.STARTING, "its START is hardly answered"
    assert state.plan(1.1)[Action.READ] > 1.0 + FIRST_LOOK / 2, "it is looked at again"
    look(state, 1.0 + FIRST_LOOK, "1-2")
    assert state.phase("a") is Phase.RUNNING
    assert not state.busy
    assert not state.blind
    assert Action.READ not in state.plan(9.0), "nothing more is to be seen"


def test_one_look_is_enough_for_a_start_that_is_in_force() -> None:
    state = started()
    look(state, 1.0 + FIRST_LOOK, "1-2")
    assert state.phase("a") is Phase.RUNNING
    assert Action.READ not in state.plan(9.0)


def test_a_container_is_not_looked_at_before_its_start() -> None:
    state = state_of("a", cpus="1-2")
    state.hears_starts = False
    apply(state, entered("a", Phase.CREATING), created("a", "1-2", "0"))
    assert Action.READ not in state.plan(9.0)


def test_no_look_ends_a_start_before_its_answer() -> None:
    state = state_of("a", cpus="1-2")
    apply(state, created("a", "1-2", "0"), 1.0, entered("a", Phase.STARTING))
    look(state, 5.0, "1-2")
    assert state.phase("a") is Phase.STARTING


def test_no_look_ends_a_start_whose_end_the_runtime_tells() -> None:
    state = started(hears_starts=True)
    look(state, 99.0, "1-2")
    assert state.phase("a") is Phase.STARTING
    apply(state, entered("a", Phase.RUNNING))
    assert state.phase("a") is Phase.RUNNING


def test_who_has_no_cgroup_to_be_seen_long_after_its_start_runs_and_the_ends_are_to_be_told() -> (
    None
):
    state = started()
    look(state, 0.9 + BLIND_GRACE, "")
    assert (state.phase("a"), state.blind) == (Phase.STARTING, False)
    look(state, 1.0 + BLIND_GRACE, "")
    assert (state.phase("a"), state.blind) == (Phase.RUNNING, True)


def test_systemd_is_asked_about_a_container_that_may_still_start_whatever_it_was_sent() -> None:
    """A runtime does not set what it is told of a container that it starts."""
    for phase, persistent in ((None, False), (Phase.RUNNING, True)):
        state = started()
        look(state, 2.0, "1-2")
        if phase is not None:  # an event says so
            apply(state, entered("a", phase))
        apply(state, written("a", "1"), Answered(updates={"a": placement("1", "0")}))
        assert state.records["a"].persistent is persistent


@pytest.mark.parametrize(
    ("visible", "hears_starts", "phase"),
    [
        (True, False, Phase.STARTING),
        (False, False, Phase.CREATED),
        (True, True, Phase.CREATED),
    ],
)
def test_a_container_that_is_listed_unstarted_may_have_been_told_to_start(
    phase: Phase, *, visible: bool, hears_starts: bool
) -> None:
    state = state_of("a", cpus="1-2")
    state.hears_starts = hears_starts
    observed = {"a": cpuset("1-2")} if visible else {}
    apply(state, Listed(recorded={"a": cpuset("1-2")}, observed=observed))
    listed = {"a": placement("1-2", "0")}
    phases = {"a": Phase.CREATED}
    apply(state, Registered(phases=phases, changes={}, unseen={}, listed=listed, new=()))
    assert state.phase("a") is phase
    if not visible:  # its cgroup was read too slowly for the list
        apply(state, Observed(container_id="a", cpuset=cpuset("1-2")))
    look(state, 9.0, "1-2")
    assert state.phase("a") is (Phase.CREATED if hears_starts else Phase.RUNNING)
