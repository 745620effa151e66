"""Damaged objects: an error with a path or an answer, never anything else."""

from __future__ import annotations

import copy
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cluster import offline
from nri_policy.cluster.document import DocumentError
from tests.unit.cluster import objects
from tests.unit.cluster.objects import HOSTNAME

EXAMPLES = int(os.environ.get("NRI_POLICY_SEQUENCES", "200"))

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
                "zones": [
                    {
                        "name": "node-0",
                        "type": "Node",
                        "parent": "socket-0",
                        "resources": [
                            {"name": "cpu", "capacity": 4, "allocatable": "4", "available": "3500m"}
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
    "settings": objects.settings("rack", HOSTNAME, topology={"belowHost": ["Node"]}),
}

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        7,
        2**31,
        2**70,
        1.5,
        "",
        "a,b",
        "-3",
        "1e400",
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
    assert status["message"] == 'topology "default" allows to fit only 1 out of 2 slice(s)'


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
    refused: DocumentError | None
    try:
        status = offline.place(
            given.get("cluster", {}), given.get("group", {}), given.get("settings")
        )
    except DocumentError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.text
        return
    assert status["state"] in ("Placed", "Unplaceable")
    assert (status["state"] == "Placed") == (not status["message"])
