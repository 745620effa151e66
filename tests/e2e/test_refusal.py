"""A container that asks for nonsense is refused, with the reason where its owner sees it."""

from __future__ import annotations

import json
import subprocess

import grpc
import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.runtime import Runtime

ANNOTATION = "prefer-shared-cpus.resource-policy.nri.io/container.main"


@pytest.mark.usefixtures("daemon")
def test_a_malformed_annotation_fails_its_own_container_only(
    stage: Kubelet, runtime: Runtime
) -> None:
    before = stage.run("before", guaranteed(1000))
    bad = stage.run_pod("bad", {"main": guaranteed(1000)}, annotations={ANNOTATION: "perhaps"})
    with pytest.raises(grpc.RpcError) as refusal:
        bad.create("main")
    assert isinstance(refusal.value, grpc.Call)
    assert ANNOTATION in refusal.value.details()
    assert "perhaps" in refusal.value.details()

    after, shared = stage.run("after", guaranteed(1000)), stage.run("shared", BEST_EFFORT)
    sets = [runtime.played(container.id).cpus for container in (before, after, shared)]
    assert [len(each) for each in sets[:2]] == [1, 1]
    assert sets[2]
    assert len(sets[0] | sets[1] | sets[2]) == sum(len(each) for each in sets)


def test_a_resize_that_is_refused_again_and_again_is_one_record(
    stage: Kubelet, daemon: Daemon
) -> None:
    """As a kubelet asks every second."""
    container = stage.run("grows", guaranteed(1000))
    for _ in range(5):
        with pytest.raises(grpc.RpcError, match="99 exclusive CPUs"):
            container.update(guaranteed(99_000))
    command, state = str(daemon.command), str(daemon.state)
    shown = [command, "history", "--journal", state, "-o", "json"]
    history = subprocess.run(shown, capture_output=True, check=True)
    (refused,) = [each for each in json.loads(history.stdout) if each["refused"]]
    assert (refused["container"], refused["count"]) == ("default/grows/main", 5)
    subprocess.run([command, "replay", state], capture_output=True, check=True)
