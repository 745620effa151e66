"""The index of the containers that hold a grant."""

from __future__ import annotations

import pytest

from nri_policy.workload.affinity import Affinity, affinities_of
from nri_policy.workload.expression import ALWAYS, Expression, Key, Operator
from nri_policy.workload.peers import Peer, Peers
from nri_policy.workload.pod import Container
from tests.support.containers import annotated, member
from tests.support.nodes import settings

CACHE, DB, OTHER = (
    member(f"default/{name}", number=number)
    for number, name in enumerate(("web/cache", "web/db", "batch/job"))
)
EVERYONE = Affinity(scope=ALWAYS, match=ALWAYS, weight=2)


def weights(peers: Peers, asked: Container, *affinities: Affinity) -> dict[str, int]:
    return peers.pulls(asked, affinities).weights()


def having(key: Key) -> Affinity:
    return Affinity(scope=ALWAYS, match=Expression(key=key, operator=Operator.EXISTS), weight=1)


def test_a_container_does_not_pull_itself() -> None:
    peers = Peers()
    peers.add(CACHE, 3)
    peers.add(DB, 3)
    assert weights(peers, CACHE, EVERYONE) == {DB.id: 2}


def test_only_containers_that_hold_a_grant_pull() -> None:
    peers = Peers()
    peers.add(CACHE, 0)
    peers.add(DB, 1)
    peers.remove(CACHE.id)
    assert weights(peers, OTHER, EVERYONE) == {DB.id: 2}
    assert list(peers.pools) == [-1, 1]


def test_weights_of_several_affinities_add_up_and_those_that_cancel_are_left_out() -> None:
    peers = Peers()
    for container in (CACHE, DB):
        peers.add(container, 0)
    both = annotated(annotated(OTHER, "job: [db]"), "job: [cache]", anti=True)
    own = affinities_of(both, settings()).each
    assert weights(peers, both, *own) == {}, "the short form is about the own pod"
    shepherd = member("default/web/shepherd", number=9)
    both = annotated(annotated(shepherd, "shepherd: [db, cache]"), "shepherd: [db]", anti=True)
    own = affinities_of(both, settings()).each
    assert weights(peers, both, *own) == {CACHE.id: 1}
    assert weights(peers, both, *own, EVERYONE) == {CACHE.id: 3, DB.id: 2}


def test_a_namesake_of_the_pod_in_another_namespace_is_not_the_own_pod() -> None:
    peers = Peers()
    peers.add(member("other/web/db", number=7), 0)
    asked = annotated(CACHE, "cache: [db]")
    assert weights(peers, asked, *affinities_of(asked, settings()).each) == {}


def test_the_strongest_peers_come_first_and_tell_their_pool() -> None:
    peers = Peers()
    for pool, container in enumerate((OTHER, DB, CACHE)):
        peers.add(container, pool)
    asked = annotated(
        member("default/web/front", number=9),
        """front:
        - {match: {key: name, operator: Equals, values: [db]}, weight: 5}
        - {scope: {operator: AlwaysTrue}, match: {operator: AlwaysTrue}, weight: -7}""",
    )
    pulls = peers.pulls(asked, affinities_of(asked, settings()).each)
    assert pulls.strongest() == [(Peer(OTHER, 0), -7), (Peer(CACHE, 2), -7), (Peer(DB, 1), -2)]


def test_pulls_stay_as_they_were_when_peers_come_and_go() -> None:
    peers = Peers()
    peers.add(CACHE, 4)
    pulls = peers.pulls(DB, [EVERYONE])
    peers.remove(CACHE.id)
    peers.add(OTHER, 5)
    assert pulls.strongest() == [(Peer(CACHE, 4), 2)]


def test_a_container_is_taken_in_once_and_forgotten_once() -> None:
    peers = Peers()
    peers.add(CACHE, 0)
    with pytest.raises(ValueError, match="ctr-0 is a peer already"):
        peers.add(CACHE, 1)
    peers.remove(CACHE.id)
    with pytest.raises(KeyError):
        peers.remove(CACHE.id)


def test_following_brings_back_an_earlier_state() -> None:
    peers = Peers()
    for pool, container in enumerate((CACHE, DB)):
        peers.add(container, pool)
    peers.remove(CACHE.id)
    peers.add(OTHER, 2)
    peers.remove(DB.id)
    peers.add(DB, 5)
    peers.follow([(CACHE, 0), (DB, 1)])
    asked = member("default/web/front", number=9)
    pulls = peers.pulls(asked, [EVERYONE])
    assert pulls.strongest() == [(Peer(CACHE, 0), 2), (Peer(DB, 1), 2)]


def test_nothing_is_kept_of_containers_that_went() -> None:
    peers = Peers()
    for number in range(1000):
        container = member(f"default/pod{number}/main", number=number, labels={f"k{number}": "v"})
        peers.add(container, 0)
        peers.remove(container.id)
    assert list(peers.pools) == [-1]
    assert peers._columns == {}


def test_joint_keys_beyond_a_number_are_forgotten_and_found_again() -> None:
    peers = Peers()
    peers.add(CACHE, 0)
    keys = [Key(("name", f"labels/{number}"), ":") for number in range(100)]
    asked = member("default/web/front", number=9)
    assert weights(peers, asked, *map(having, keys)) == {CACHE.id: 100}
    assert len(peers._joint) == 32
    peers.add(DB, 0)
    assert weights(peers, asked, *map(having, keys)) == {CACHE.id: 100, DB.id: 100}
