"""What the runtime knows of cpusets, and what is in force."""

from __future__ import annotations

from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.plugin.ledger import Cpuset, Ledger


def placement(cpus: str, mems: str = "") -> Placement:
    return Placement(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems), shares=None, cause="")


def cpuset(cpus: str, mems: str = "0") -> Cpuset:
    return Cpuset(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems))


def write(ledger: Ledger, name: str, cpus: str, now: float = 1.0) -> None:
    ledger.written(name, placement(cpus), CPUSet.parse(cpus), now)


def test_who_is_written_is_untold_until_told_or_back() -> None:
    ledger = Ledger()
    ledger.created("a", placement("1-3", "0"))
    ledger.created("b", placement("1-3", "0"))
    write(ledger, "a", "1-2", 1.0)
    write(ledger, "b", "1", 2.0)
    write(ledger, "a", "1", 3.0)
    assert ledger.untold == {"a": 1.0, "b": 2.0}
    assert ledger.some_untold.is_set()
    write(ledger, "a", "1-3", 4.0)
    assert ledger.untold == {"b": 2.0}
    ledger.told("b", placement("1", "0"))
    assert not ledger.untold
    assert not ledger.some_untold.is_set()
    assert ledger.in_force("a") == cpuset("1-3")


def test_where_nobody_knows_what_the_runtime_knows_it_is_told() -> None:
    ledger = Ledger()
    ledger.created("a", placement("1-3"))
    write(ledger, "a", "1-2")
    ledger.unsure("a")
    write(ledger, "a", "1-3")
    assert ledger.untold == {"a": 1.0}


def test_memory_nodes_that_the_runtime_does_not_know_are_told_once() -> None:
    ledger = Ledger()
    ledger.restart({"a": cpuset("1-3", "")}, {"a": cpuset("1-3")})
    ledger.written("a", placement("1-3", "0"), CPUSet.parse("1-3"), 1.0)
    assert ledger.untold == {"a": 1.0}
    ledger.told("a", placement("1-3", "0"))
    ledger.written("a", placement("1-3", "0"), CPUSet.parse("1-3"), 2.0)
    assert not ledger.untold


def test_a_list_shows_who_is_right_and_believed_elsewhere() -> None:
    ledger = Ledger()
    listed = {"right": cpuset("1"), "untold": cpuset("1-3"), "wrong": cpuset("1-3")}
    ledger.restart(listed, listed | {"untold": cpuset("1")})
    ledger.compare(dict.fromkeys(listed, placement("1", "0")), 5.0)
    assert ledger.untold == {"untold": 5.0}


def test_what_an_earlier_daemon_wrote_may_not_last() -> None:
    """It may have ended before systemd had heard of it."""
    ledger = Ledger()
    ledger.restart({"a": cpuset("1-3"), "b": cpuset("1")}, {"a": cpuset("1"), "b": cpuset("1")})
    ledger.compare(dict.fromkeys("ab", placement("1", "0")), 5.0)
    assert [*ledger.fleeting] == ["a"]
    assert ledger.fresh.is_set()


def test_whom_systemd_may_undo_is_told_first() -> None:
    ledger = Ledger()
    for name in ("a", "b", "c"):
        ledger.created(name, placement("1-3"))
        write(ledger, name, "1")
    assert ledger.fresh.is_set()
    for name in ("a", "c"):
        ledger.lasts(name)
    assert [*ledger.by_urgency()] == ["b", "a", "c"]
    ledger.told("b", placement("1"))
    assert not ledger.fleeting
    assert [*ledger.by_urgency()] == ["a", "c"]


def test_what_is_gone_or_was_never_seen_is_not_known() -> None:
    ledger = Ledger()
    assert ledger.in_force("a") is None
    ledger.created("a", placement("1"))
    write(ledger, "a", "2")
    ledger.forget("a")
    assert (ledger.in_force("a"), ledger.known("a")) == (None, None)
    assert not ledger.untold
    assert not ledger.fleeting
    ledger.seen("a", Cpuset(cpus=CPUSet([1]), mems=EMPTY))
    ledger.seen("a", None)
    assert ledger.in_force("a") is None
