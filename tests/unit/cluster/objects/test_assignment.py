"""Assignments as objects store them: the same when they are read again, and small."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.cluster.objects.assignment import (
    MAX_PLAIN,
    Assignment,
    DomainAssignment,
    restore,
    store,
)
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, read_group, write_status
from tests.unit.cluster import written as objects
from tests.unit.cluster.written import HOSTNAME

MOST = 1 << 20  # bytes of an object


def assigned(paths: list[tuple[str, ...]], counts: list[int]) -> Assignment:
    domains = [DomainAssignment([*path], count) for path, count in zip(paths, counts, strict=True)]
    return Assignment("main", [f"level-{n}" for n in range(len(paths[0]))], domains)


@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.tuples(*[st.text("ab0", max_size=4)] * width), min_size=1, max_size=9, unique=True
        )
    ),
    st.data(),
)
def test_what_is_stored_is_read_again(paths: list[tuple[str, ...]], data: Any) -> None:
    counts = data.draw(st.lists(st.integers(0, 2), min_size=len(paths), max_size=len(paths)))
    times = 1 + MAX_PLAIN // len(paths)  # enough to be stored as runs
    many = sorted((*path[:-1], f"{path[-1]}{number}") for path in paths for number in range(times))
    given = assigned(many, counts * times)
    stored = store(given)
    assert stored.runs
    assert not stored.domains
    assert restore(stored, "") == given


def test_a_few_domains_are_stored_as_people_read_them() -> None:
    given = assigned([("n1",), ("n2",)], [3, 1])
    assert msgspec.to_builtins(store(given)) == {
        "podSet": "main",
        "levels": ["level-0"],
        "domains": [{"values": ["n1"], "count": 3}, {"values": ["n2"], "count": 1}],
    }


def test_levels_above_hosts_say_nothing_more() -> None:
    """Kueue may store them, and so may people; our trees know hosts by their names."""
    levels = ["example.com/rack", HOSTNAME, "zone/Node"]
    given = store(Assignment("main", levels, [DomainAssignment(["r1", "n1", "node-0"], 2)]))
    assert restore(given, "") == Assignment(
        "main", levels[1:], [DomainAssignment(["n1", "node-0"], 2)]
    )


@pytest.mark.parametrize(
    "name",
    ["node-{0:06}", "ip-10-{1}-{2}-{3}.eu-west-2.compute.internal", "gke-prod-pool-1a2b-{0:05x}"],
)
def test_a_fifth_of_100_000_pods_takes_less_than_a_fifth_of_an_object(name: str) -> None:
    names = sorted(name.format(n, n >> 16, n >> 8 & 255, n & 255) for n in range(20_000))
    given = objects.group(objects.pod_set(20_000))
    assignment = Assignment("main", [HOSTNAME], [DomainAssignment([each], 1) for each in names])
    group: PlacementGroup = msgspec.structs.replace(
        read_group(given), status=GroupStatus(state="Placed", assignments=[assignment])
    )
    given["status"] = write_status(group)
    assert len(msgspec.json.encode(given)) < MOST / 5
    assert (given["status"]["pods"], given["status"]["domains"]) == (20_000, 20_000)
    assert read_group(given) == group


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            {"values": [{"prefix": "n", "names": ["1", "2"]}], "counts": [1, 2, 3]},
            "runs[0]: names and counts are not one for each domain",
        ),
        ({"values": [], "counts": [1]}, "domains[0].values: 0 values do not name levels a"),
        (
            {"values": [{"prefix": "n"}], "counts": [2**31]},
            "domains[0].count: 2147483648 is not from 0 to 2147483647",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(run: Any, text: str) -> None:
    status = {"assignments": [{"podSet": "main", "levels": ["a"], "runs": [run]}]}
    with pytest.raises(DocumentError) as caught:
        read_group(objects.group(objects.pod_set(1), status=status))
    assert str(caught.value) == f"status.assignments[0].{text}"
