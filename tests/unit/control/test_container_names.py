from __future__ import annotations

import pytest

from nri_policy.control.container_names import UnknownNameError, find_by_name

KNOWN = ("default/web/main", "default/web/proxy", "prod/web/main", "prod/db/main", "web/main/c")


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("web", ["default/web/main", "default/web/proxy"]),
        ("web/proxy", "default/web/proxy"),
        ("prod/web", ["prod/web/main"]),
        ("prod/web/main", "prod/web/main"),
    ],
)
def test_what_can_be_left_out_is_left_out(name: str, meaning: str | list[str]) -> None:
    assert find_by_name(name, KNOWN) == meaning


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("db", "no pod or container 'db'; there is prod/db"),
        ("web/man", "no pod or container 'web/man': the containers of web are main, proxy"),
        ("prod/wen", "no pod or container 'prod/wen'; did you mean 'prod/web'?"),
        ("big", "no pod or container 'big'; known pods: prod/db, prod/web, web, web/main"),
        (
            "prod/web/sidecar",
            "no pod or container 'prod/web/sidecar': the containers of prod/web are main",
        ),
        (
            "default/web/sidecar",
            "no pod or container 'default/web/sidecar': the containers of web are main, proxy",
        ),
        ("", "no pod or container ''; known pods: prod/db, prod/web, web, web/main"),
        (
            "deployment/big",
            (
                "no pod or container 'deployment/big'; write POD, POD/CONTAINER, NAMESPACE/POD or"
                " NAMESPACE/POD/CONTAINER; known pods: prod/db, prod/web, web, web/main"
            ),
        ),
        ("pod/web", "no pod or container 'pod/web'; did you mean 'web'?"),
        ("a/b/c/web", "no pod or container 'a/b/c/web'; did you mean 'web'?"),
        (
            "web/main",
            (
                "'web/main' is a container and a pod: write default/web/main for the container, or"
                " web/main/c for one of the pod"
            ),
        ),
    ],
)
def test_a_name_that_means_nothing_or_two_things_says_what_there_is(
    name: str, message: str
) -> None:
    with pytest.raises(UnknownNameError) as error:
        find_by_name(name, KNOWN)
    assert str(error.value) == message


def test_a_name_of_a_node_without_containers_is_unknown() -> None:
    with pytest.raises(UnknownNameError) as error:
        find_by_name("big", ())
    assert str(error.value) == "no pod or container 'big'"
