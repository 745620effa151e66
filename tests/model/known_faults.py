"""What finds each known fault in the least time: the model, or one test.

`tests/model/mutants.py` puts the faults in. docs/design/delivery.md §3 has the whole table, with
the faults that histories of the loop find (`tests/loop/mutants.py`).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from tests.model.mutants import MUTANTS


class InModel(NamedTuple):
    """A fault shows in a scene within so many states."""

    scene: str
    release: tuple[str, str]
    states: int


_OLDEST, _NEWEST = ("containerd", "1.7.24"), ("containerd", "2.4.0")

BY_MODEL = {
    "a start does not wait for others to leave its CPUs": InModel(
        "an owner comes to a sharer, a fault", _NEWEST, 300
    ),
    "a start does not look at what is in doubt": InModel(
        "a sharer and an owner to come", _NEWEST, 2500
    ),
    "a start does not look for what systemd has undone": InModel(
        "an owner comes to a sharer of systemd's, a fault", _OLDEST, 6000
    ),
    "a resize is answered before others have left its CPUs": InModel(
        "owner and sharer", _NEWEST, 1500
    ),
    "what is sent while the runtime is busy is not taken for lost": InModel(
        "an owner comes, cgroups are invisible, a fault", _NEWEST, 700
    ),
    "no look finds that a start has ended": InModel("a sharer and an owner to come", _NEWEST, 300),
    "systemd is not asked to keep what was written": InModel(
        "owner and sharer of systemd's, a fault", _OLDEST, 100
    ),
    "what is created during a registration is not taken for lost": InModel(
        "an owner comes, cgroups are invisible, a fault", _OLDEST, 1500
    ),
    "what is not in force in time is not sent again": InModel(
        "an owner comes, cgroups are read-only, a fault", _NEWEST, 200
    ),
    "files are not written after an event": InModel("owner and sharer, a fault", _NEWEST, 100),
    "a new daemon does not look at what an earlier one wrote": InModel(
        "owner and sharer, a fault", _NEWEST, 300
    ),
    "a file is not written for what a message was to bring": InModel(
        "an owner comes to a sharer, a fault", _NEWEST, 400
    ),
    "no answer takes changes along": InModel("a sharer comes to an owner", _NEWEST, 1800),
    "a start takes its partition for granted": InModel(
        "an owner comes to a sharer, the kernel keeps others off, a fault", _NEWEST, 2400
    ),
    "CPUs that a partition still has are given to another": InModel(
        "owner and sharer of one pod, the kernel keeps others off", _NEWEST, 2500
    ),
    "what an earlier daemon has left in files of partitions stays": InModel(
        "two owners that move, the kernel keeps others off, a fault", _NEWEST, 500
    ),
    "a partition that shrinks keeps its CPUs": InModel(
        "two owners that move, the kernel keeps others off, a fault", _NEWEST, 1800
    ),
    "cgroups above keep no CPUs for partitions": InModel(
        "an owner comes to a sharer, the kernel keeps others off", _NEWEST, 100
    ),
    "a registration sends nothing of what differs from the list": InModel(
        "owner and sharer, a fault", _NEWEST, 100
    ),
    # nothing rules out that it gets there, so only the look afterwards shows it
    "what is found on CPUs of another's own stays there": InModel(
        "two owners that move", _NEWEST, 1500
    ),
}

_DELIVERY, _PLUGIN = "tests/unit/delivery", "tests/unit/plugin"
# a test that fails with the fault
BY_TEST = {
    "what a new daemon finds is taken for kept by systemd": (
        f"{_DELIVERY}/test_records.py::test_what_an_earlier_daemon_wrote_may_be_undone_where_the_runtime_records_the_same"
    ),
    "what starts during a registration is not looked at": (
        f"{_DELIVERY}/test_records.py::test_a_container_that_is_listed_unstarted_may_have_been_told_to_start"
    ),
    "the ends of starts that no look sees are not asked for": (
        f"{_PLUGIN}/test_policy_plugin.py::test_the_end_of_a_start_is_asked_for_where_no_cgroup_can_show_it"
    ),
    "a resize that seems refused cannot come into force late": (
        f"{_PLUGIN}/test_owners.py::test_a_resize_that_seemed_refused_counts_when_it_ends_after_all"
    ),
    "what a late resize has set counts as recorded": (
        f"{_DELIVERY}/test_records.py::test_nobody_knows_what_the_runtime_records_of_a_resize_that_comes_late"
    ),
    "the end of a resize that was overdue is not looked at": (
        f"{_PLUGIN}/test_resizes.py::test_who_ends_a_resize_after_it_was_overdue_is_looked_at"
    ),
    "what a resize should have brought is not sent again": (
        f"{_PLUGIN}/test_resizes.py::test_what_a_resize_should_have_brought_is_sent_again"
    ),
    "a container lacks CPUs after it has left another's": (
        f"{_DELIVERY}/test_overlaps.py::test_who_was_put_on_the_cpus_of_another_gets_all_of_its_own_again"
    ),
    "what was decided during a call is not sent again": (
        f"{_DELIVERY}/test_records.py::test_what_is_decided_anew_during_a_call_is_sent_again"
    ),
    "what a lost call said is not sent again": (
        f"{_DELIVERY}/test_records.py::test_what_a_lost_call_said_is_sent_again"
    ),
    "what failed in a call is not sent again": (
        f"{_DELIVERY}/test_records.py::test_what_a_call_failed_to_do_is_sent_again"
    ),
    "a container grows onto CPUs that another occupies": (
        f"{_DELIVERY}/test_writing.py::test_nobody_gets_what_somebody_has_still_to_leave"
    ),
    "a look has a container grow onto CPUs that another occupies": (
        f"{_DELIVERY}/test_looks.py::test_nobody_gets_what_another_cannot_be_made_to_leave"
    ),
    "what a batch may have given is not taken back": (
        f"{_DELIVERY}/test_writing.py::test_a_start_waits_for_a_batch_that_is_about_to_give_its_cpus_to_others"
    ),
    "a cgroup that could not be written is tried at once again": (
        f"{_DELIVERY}/test_records.py::test_a_cgroup_that_could_not_be_written_is_tried_again_after_a_minute"
    ),
    "a cgroup that could not be written is never tried again": (
        f"{_DELIVERY}/test_records.py::test_a_cgroup_that_could_not_be_written_is_tried_again_after_a_minute"
    ),
    "a change without a visible cgroup is never taken for in force": (
        f"{_DELIVERY}/test_records.py::test_the_next_request_says_that_the_answers_before_were_handled"
    ),
    "a resize that the list shows refused is not taken back": (
        f"{_PLUGIN}/test_owners.py::test_a_resize_that_seemed_refused_counts_when_it_is_seen_in_force_after_all"
    ),
    "what the answer of a failed creation carried is not sent again": (
        f"{_PLUGIN}/test_storm.py::test_what_goes_along_with_a_creation_that_fails_is_told_again"
    ),
    "new settings move a container that is still a partition": (
        "tests/unit/engine/test_stopped_containers.py::test_new_settings_leave_it_where_it_is"
    ),
    "new settings forget what a resize keeps": (
        "tests/unit/engine/restart/test_kept_grants.py::test_what_a_resize_frees_is_kept_from_others_when_the_settings_change"
    ),
    "a resize does not look for what systemd has undone": (
        f"{_DELIVERY}/test_scopes.py::test_a_resize_on_cpus_of_its_own_finds_what_systemd_has_undone"
    ),
    "a look moves a container onto CPUs that a partition still has": (
        f"{_DELIVERY}/test_partitions.py::test_a_look_moves_nobody_onto_cpus_that_a_partition_still_keeps"
    ),
    "a sidecar is widened onto CPUs that its sibling's partition still has": (
        f"{_DELIVERY}/test_partitions.py::test_nothing_widens_a_sidecar_onto_cpus_that_its_sibling_still_keeps[call]"
    ),
    "a list is answered before the partitions of an earlier daemon are known": (
        f"{_DELIVERY}/test_partitions.py::test_a_new_daemon_lets_no_sidecar_overlap_with_a_partition_that_an_earlier_one_has_left"
    ),
    "a container that the list lacks stays a partition": (
        f"{_DELIVERY}/test_partitions.py::test_the_cgroup_of_an_owner_that_ended_loses_no_cpus_to_its_sidecar[list]"
    ),
    "a container that is still a partition leaves the books": (
        f"{_DELIVERY}/test_partitions.py::test_nobody_gets_the_cpus_of_an_ended_container_that_is_still_a_partition[list]"
    ),
    "a message moves a container onto CPUs that a partition still has": (
        f"{_DELIVERY}/test_partitions.py::test_no_message_moves_a_container_onto_cpus_that_a_partition_still_keeps"
    ),
    "a partition takes all CPUs that a container still has": (
        f"{_DELIVERY}/test_partitions.py::test_a_partition_takes_no_container_s_last_cpus"
    ),
}

_TRIES = 3


def main() -> int:
    """Put each fault in, and run its test; print those that pass it, and return 1 if any does."""
    missed = [each for each, test in BY_TEST.items() if not _fails(each, test)]
    sys.stdout.write("".join(f"not found: {each}\n" for each in missed))
    return 1 if missed else 0


def _fails(fault: str, test: str) -> bool:
    """Whether a test finds a fault; without CPU time, it may look after the fault was mended."""
    options = ("-q", "-n0", "-x", "-p", "no:cacheprovider", "--tb=no")
    with MUTANTS[fault]():
        ended = (pytest.main([*options, test]) for _ in range(_TRIES))
        return any(each is pytest.ExitCode.TESTS_FAILED for each in ended)


if __name__ == "__main__":
    sys.exit(main())
