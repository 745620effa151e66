"""Four sockets of 24 CPUs: 96, so that a mask of them is longer than a word."""

from __future__ import annotations

from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective, run


def test_whole_sockets_are_filled_and_the_rest_is_shared(kubelet: Kubelet) -> None:
    whole = [run(kubelet, f"whole-{number}", guaranteed(24_000)) for number in range(3)]
    assert {kernel.effective(each) for each in whole} == {
        Effective(cpus="24-47", mems="1"),
        Effective(cpus="48-71", mems="2"),
        Effective(cpus="72-95", mems="3"),
    }
    shared = run(kubelet, "shared", BEST_EFFORT)
    assert kernel.effective(shared) == Effective(cpus="1-23", mems="0")
