"""numaplacement v001: what its own encoder makes of the same containers, and who is in it.

The expected texts were made with the reference implementation (numaplacement, March 2026).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.node import NodeView, view_of
from nri_policy.nrt.fingerprint import xxh64
from nri_policy.nrt.numaplacement import ContainerName, decode, encode, leb89
from nri_policy.nrt.reading import numa_nodes
from nri_policy.workload.pod import Container
from tests.support import nodes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "!"),
        (1, "#"),
        (63, "e"),
        (64, "f!"),
        (127, "fe"),
        (128, "g!"),
        (1663, "~e"),
        (1664, "gf!"),
        (40063, "~~e"),
        (40064, "gff!"),
        (1_000_000, "~~~!"),
    ],
)
def test_a_number_is_written_as_the_reference_writes_it(number: int, text: str) -> None:
    assert leb89(number) == text


def test_containers_are_encoded_as_the_reference_encodes_them() -> None:
    two = {
        ("ns3", "pod-76", "c0"): 0,
        ("ns3", "pod-47", "c1"): 0,
        ("ns2", "pod-63", "c2"): 0,
        ("ns0", "pod-23", "c3"): 0,
        ("ns2", "pod-33", "c4"): 1,
        ("ns4", "pod-33", "c5"): 1,
        ("ns1", "pod-2", "c6"): 1,
    }
    three = {
        ("ns4", "pod-22", "c0"): 1,
        ("ns2", "pod-8", "c1"): 0,
        ("ns3", "pod-66", "c2"): 0,
        ("ns0", "pod-40", "c3"): 0,
        ("ns2", "pod-57", "c4"): 2,
        ("ns1", "pod-39", "c5"): 0,
        ("ns3", "pod-0", "c6"): 1,
    }
    for containers, nodes_, metadata, vectors in (
        ({}, 4, "npv0v001::ve=leb89::cc=0::nn=4::bn=0", {}),
        (two, 2, "npv0v001::ve=leb89::cc=7::nn=2::bn=0", {1: "$##"}),
        (three, 3, "npv0v001::ve=leb89::cc=7::nn=3::bn=0", {1: "!%", 2: "$"}),
        (
            {("ns0", "pod-3", "c0"): 5, ("ns3", "pod-5", "c1"): 6},  # equally busy: the lower one
            7,
            "npv0v001::ve=leb89::cc=2::nn=7::bn=5",
            {6: "!"},
        ),
    ):
        encoded = encode(containers, nodes_)
        assert (encoded.metadata, encoded.vectors) == (metadata, vectors)


_names = some.tuples(*[some.text("abc-", min_size=1, max_size=3)] * 3)


@given(some.dictionaries(_names, some.integers(0, 7), max_size=200))
def test_a_reader_finds_each_container_on_its_node(containers: dict[ContainerName, int]) -> None:
    encoded = encode(containers, 8)
    fields = dict(part.split("=") for part in encoded.metadata.split("::")[1:])
    assert (fields["cc"], fields["nn"]) == (str(len(containers)), "8")
    found = [int(fields["bn"])] * len(containers)
    for node, vector in encoded.vectors.items():
        assert node != int(fields["bn"])
        for offset in offsets(vector):
            found[offset] = node
    order = sorted(containers, key=lambda name: xxh64("\0".join(name).encode()))
    assert [containers[name] for name in order] == found
    assert decode(encoded.metadata, encoded.vectors, containers) == containers
    more = [*containers, ("of", "others", "")]
    assert decode(encoded.metadata, encoded.vectors, more) is None


def test_a_reader_finds_containers_that_are_far_apart() -> None:
    names = sorted(
        (("n", "p", f"c{number}") for number in range(2000)),
        key=lambda name: xxh64("\0".join(name).encode()),
    )
    far = {names[0], names[65], names[200], names[1999]}
    containers = {name: int(name in far) for name in names}
    encoded = encode(containers, 2)
    assert decode(encoded.metadata, encoded.vectors, containers) == containers


@pytest.mark.parametrize(
    ("metadata", "vector"),
    [
        ("", "!"),
        ("npv0v002::ve=leb89::cc=2::nn=2::bn=0", "!"),
        ("npv0v001::ve=plain::cc=2::nn=2::bn=0", "!"),
        ("npv0v001::ve=leb89::cc=2::nn=2::bn=x", "!"),
        ("npv0v001::ve=leb89::cc=1::nn=2::bn=0", "!"),
        ("npv0v001::ve=leb89::cc=2::nn=2::bn=0", "$"),  # a third one
        ("npv0v001::ve=leb89::cc=2::nn=2::bn=0", "f"),  # a number without an end
        ("npv0v001::ve=leb89::cc=2::nn=2::bn=0", "é"),
    ],
)
def test_what_is_no_encoding_of_these_containers_is_not_believed(
    metadata: str, vector: str
) -> None:
    containers = {("n", "p", "c"): 1, ("n", "q", "c"): 0}
    assert decode(metadata, {1: vector}, containers) is None


def offsets(vector: str) -> list[int]:
    """Return the offsets in a vector: the reader's side, by the rule in nrt.md §1.6."""
    alphabet = [chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"&<>\\']
    found, before, rest = [], 0, None
    for letter in vector:
        digit = alphabet.index(letter)
        if digit >= 64:
            rest = (rest or 0) * 25 + digit - 64
            continue
        before += digit if rest is None else 64 + 64 * rest + digit
        found.append(before)
        rest = None
    return found


def placed(*containers: Container, **spec: object) -> NodeView:
    engine = Engine(nodes.machine(), nodes.settings(**spec))
    for each in containers:
        engine.handle(Created(container=each))
    return view_of(engine)


def pods_of(*containers: Container) -> set[tuple[str, str]]:
    return {(each.pod.namespace, each.pod.name) for each in containers}


def test_every_container_of_the_pods_that_schedulers_count_is_on_a_node() -> None:
    """Those that share CPUs, too: their memory is their own. Others' are not."""
    own, shared, other = nodes.container(2000), nodes.container(500), nodes.container(1000, 2000)
    view = placed(own, shared, other, alignment="numa")
    found = numa_nodes(view, pods_of(own, shared))
    assert found is not None
    assert {name[1] for name in found} == {own.pod.name, shared.pod.name}
    for each in (own, shared):
        cpus = view.cpus(view.placed[each.id])
        assert cpus <= view.layout.machine.nodes[found["default", each.pod.name, "c0"]].cpus


def test_a_container_of_several_nodes_has_no_form() -> None:
    small, wide = nodes.container(1000), nodes.container(6000)
    assert numa_nodes(placed(small), pods_of(small)) is not None
    assert numa_nodes(placed(small, wide), pods_of(small, wide)) is None


def test_what_is_not_pinned_is_on_no_node() -> None:
    key = {"cpu.preserve.resource-policy.nri.io": "true"}
    preserved = nodes.container(1000, annotations=key)
    assert numa_nodes(placed(preserved), pods_of(preserved)) is None


def test_no_nodes_are_published_with_a_counted_pod_that_is_not_guaranteed() -> None:
    """A scheduler counts only its containers with devices, and the node does not know which."""
    burstable = nodes.container(1000, 2000)
    assert numa_nodes(placed(burstable), pods_of(burstable)) is None
