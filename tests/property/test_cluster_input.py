"""Damaged objects: an error with a path or an answer, never anything else."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cluster import offline
from nri_policy.cluster.cluster_files import ClusterFiles, read_documents
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import ClusterNode, read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.workloads.workload import make_pod_document, read_groups
from tests.unit.cluster import written as objects
from tests.unit.cluster.written import HOSTNAME

EXAMPLES = 200

WHOLE: dict[str, Any] = {
    "cluster": {
        "nodes": [
            objects.node("n1", RACK="a", taints=[{"key": "k", "effect": "NoSchedule"}]),
            objects.node("n2", RACK="b", gpu=4),
        ],
        "pods": [objects.pod("p", "n1", cpu=1), objects.pod("q", "n2", group="other", cpu=1)],
        "zones": [
            {
                "metadata": {"name": "n2"},
                "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
                "zones": [
                    {
                        "name": "node-0",
                        "type": "Node",
                        "parent": "socket-0",
                        "resources": [
                            {
                                "name": name,
                                "capacity": "4G",
                                "allocatable": "4G",
                                "available": "3500M",
                            }
                            for name in ("cpu", "memory")
                        ],
                    }
                ],
            }
        ],
        "groups": [
            objects.group(
                objects.pod_set(2),
                name="other",
                status={
                    "assignments": [
                        {
                            "podSet": "main",
                            "levels": [HOSTNAME],
                            "domains": [{"values": ["n2"], "count": 2}],
                        }
                    ]
                },
            )
        ],
        "stale": [],
        "failures": {"n1": 2},
    },
    "group": objects.group(
        objects.pod_set(
            4,
            {
                "required": "example.com/rack",
                "slices": [{"level": "zone/Node", "size": 2}],
                "leaderGroup": "j",
                "maxPerHost": 4,
            },
            name="workers",
            spec={
                "nodeSelector": {"example.com/rack": "b"},
                "tolerations": [{"operator": "Exists"}],
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 3,
                                "preference": {
                                    "matchExpressions": [
                                        {
                                            "key": "example.com/rack",
                                            "operator": "In",
                                            "values": ["b"],
                                        }
                                    ]
                                },
                            }
                        ]
                    }
                },
            },
        ),
        objects.pod_set(1, {"required": "example.com/rack", "leaderGroup": "j"}, name="leader"),
        status={
            "assignments": [
                {
                    "podSet": "workers",
                    "levels": [HOSTNAME, "zone/Node"],
                    "domains": [{"values": ["n1", "node-0"], "count": 4}],
                }
            ],
            "unhealthyNodes": [],
        },
    ),
    "settings": objects.settings(
        "rack",
        HOSTNAME,
        topology={"belowHost": ["Node"]},
        extender={"strategy": "LeastAllocated", "resources": {"cpu": 2}},
    ),
    "pod": {
        "metadata": {"name": "asked"},
        "spec": {
            "containers": [
                {"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}},
            ]
        },
    },
    "spread": objects.group(objects.pod_set(3, {"spreadOver": ["example.com/rack={a: 2, b: 1}"]})),
}

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        7,
        2**31,
        2**64,
        2**70,
        -(10**30),
        1.5,
        1e30,
        -1e30,
        float("nan"),
        float("inf"),
        "",
        "a,b",
        "-3",
        "1e400",
        "\ud800",
        "a\0b",
        "example.com/rack={a: 18446744073709551616}",
        "zone/Node",
        "n1",
        [],
        {},
        [None],
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(each for key, one in inner for each in places(one, (*path, key)))]


PLACES = [path for path in places(WHOLE) if len(path) > 1]


def test_the_undamaged_objects_are_placed() -> None:
    status = offline.place(WHOLE["cluster"], WHOLE["group"], WHOLE["settings"])
    assert status["message"] == (
        'topology "default" allows to fit only 1 out of 2 slice(s), none beside the leader,'
        " at most 4 on each host"
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK, st.booleans()), min_size=1, max_size=3))
def test_damage_is_an_error_with_a_path_or_an_answer(
    damages: list[tuple[tuple[Any, ...], Any, bool]],
) -> None:
    given = copy.deepcopy(WHOLE)
    for path, junk, gone in damages:
        at: Any = given
        try:
            for key in path[:-1]:
                at = at[key]
            if gone:
                del at[path[-1]]
            else:
                at[path[-1]] = junk
        except (KeyError, IndexError, TypeError):
            continue  # an earlier damage took it
    cluster, using = given.get("cluster", {}), given.get("settings")
    refused: DocumentError | None
    try:
        status = offline.place(cluster, given.get("group", {}), using)
    except DocumentError as error:
        refused = error
    else:
        refused = None
        assert status["state"] in ("Placed", "Unplaceable")
        assert (status["state"] == "Placed") == (not status["message"])
    assert refused is None or str(refused).encode()
    for ask, name in ((offline.fit, "pod"), (offline.spread, "spread")):
        try:
            ask(cluster, given.get(name, {}), using)
        except DocumentError as error:
            str(error).encode()


TEXTS = [
    json.dumps(
        {"kind": "List", "items": [{"kind": "Node", **each} for each in WHOLE["cluster"]["nodes"]]}
    ),
    json.dumps({"kind": "Pod", **WHOLE["pod"]}, indent=1),
    yaml.safe_dump({"kind": "PlacementGroup", **WHOLE["group"]}),
    yaml.safe_dump(WHOLE["cluster"]),
    yaml.safe_dump_all(
        [
            {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}}
            for spec in (objects.pod_spec({"cpu": 1}), {})
        ]
    ),
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=3), st.integers(0, 9)), max_size=4),
)
def test_a_damaged_text_is_an_error_that_names_the_file_or_objects(
    text: str, damages: list[tuple[int, bytes, int]]
) -> None:
    given = text.encode()
    for at, put, gone in damages:
        at %= len(given) + 1  # noqa: PLW2901 - within what is left
        given = given[:at] + put + given[at + gone :]
    documents, files, refused = [], ClusterFiles(), ""
    try:
        documents = read_documents(given, "the file")
        files.add(given, "the file")
    except DocumentError as error:
        refused = str(error)
    assert not refused or refused.startswith("the file")
    for read in (
        lambda: read_snapshot(files.cluster),
        lambda: read_groups(documents),
        lambda: [read_pod(make_pod_document(each, ""), "") for each in documents],
    ):
        with suppress(DocumentError):
            read()


USUAL = objects.node("n1", RACK="a", gpu=4) | {"spec": {}}
NODE_PLACES = [
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "labels"),
    ("metadata", "labels", "example.com/rack"),
    ("spec",),
    ("spec", "taints"),
    ("spec", "unschedulable"),
    ("status",),
    ("status", "allocatable"),
    ("status", "allocatable", "cpu"),
    ("status", "conditions"),
    ("status", "conditions", 0),
    ("status", "conditions", 0, "type"),
    ("status", "conditions", 0, "status"),
]
NODE_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, 0, 3, 1.5, "", "x", "True", "False", "Ready", "-2", "4Gi", [], {}),
        *([{}], [None], {"a": "b"}, {"a": 1}, {"a": None}),  # of wrong types, too
        [{"key": "k", "effect": "NoSchedule"}],
        [{"type": "Ready", "status": "Unknown"}, {"type": "Ready", "status": "True"}],
    ]
)


def read(value: object) -> ClusterNode | str:
    try:
        return read_node(value, "nodes[3]")
    except DocumentError as error:
        return str(error)


@settings(max_examples=EXAMPLES * 3, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NODE_PLACES), NODE_VALUES), max_size=3))
def test_a_node_that_is_read_at_once_is_read_as_any_other(
    changes: list[tuple[tuple[str | int, ...], Any]],
) -> None:
    """Only plain values are read at once, not those in a text."""
    node = copy.deepcopy(USUAL)
    for (*path, last), value in changes:
        with suppress(KeyError, IndexError, TypeError):
            holder: Any = node
            for each in path:
                holder = holder[each]
            holder[last] = copy.deepcopy(value)  # each is one object, whichever example it is in
    assert read(node) == read(msgspec.Raw(msgspec.json.encode(node)))


def test_a_node_that_is_read_at_once_is_no_part_of_what_it_was_read_from() -> None:
    node = copy.deepcopy(USUAL)
    found = read_node(node, "")
    node["metadata"]["labels"]["example.com/rack"] = "b"
    assert found == read_node(USUAL, "")
