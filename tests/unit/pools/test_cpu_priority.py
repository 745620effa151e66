"""Which CPUs are fast and which are slow, by the first source that tells them apart."""

from __future__ import annotations

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import CoreKind
from nri_policy.pools.cpu_priority import classes_of
from nri_policy.settings import Priority
from tests.support import nodes


@pytest.mark.parametrize(
    ("spec", "high", "normal", "low"),
    [
        ("package:1 core:4", "", "0-3", ""),
        # two performance cores of two threads, two efficiency cores of one
        ("package:1 core:4(efficiency=2) pu:2", "0-3", "", "4-5"),
        # core kinds come before frequencies
        ("package:1 core:4(efficiency=2) pu:2 base=2GHz base@0=3GHz", "0-3", "", "4-5"),
        ("package:1 core:4 base=2GHz base@2-3=3GHz", "2-3", "", "0-1"),
        ("package:1 core:4 base=2GHz", "", "0-3", ""),
        ("package:1 core:6 base=2GHz base@2-3=3GHz base@4=2.5GHz", "2-4", "", "0-1,5"),
        # base frequencies come before preferences
        ("package:1 core:4 base=2GHz base@3=3GHz epp=power epp@0=performance", "3", "", "0-2"),
        ("package:1 core:4 epp=balance_power epp@0=performance", "0", "", "1-3"),
        ("package:1 core:4 epp=performance epp@2-3=power", "0-1", "", "2-3"),
        ("package:1 core:4 epp=performance", "", "0-3", ""),
        ("package:1 core:4 epp=127", "", "0-3", ""),
        # unknown to the source that decides: neither fast nor slow
        ("package:1 core:4 epp@0=performance epp@1=power", "0", "2-3", "1"),
        ("package:1 core:4 epp@0=performance epp@1=power offline=1", "", "0,2-3", ""),
    ],
)
def test_the_first_source_that_tells_cpus_apart_makes_the_classes(
    spec: str, high: str, normal: str, low: str
) -> None:
    machine = nodes.machine(spec)
    classes = classes_of(machine)[Priority.HIGH]
    assert [str(cpus) for cpus in classes] == [high, normal, low]
    assert CPUSet.union(classes) == machine.online


def test_the_wanted_class_comes_first_and_then_the_next_lower() -> None:
    classes = classes_of(nodes.machine("package:1 core:4(efficiency=2) pu:2"))
    high, normal, low = classes[Priority.HIGH]
    assert classes[Priority.NORMAL] == (normal, low, high)
    assert classes[Priority.LOW] == (low, normal, high)
    assert classes[Priority.NONE] == ()


def test_the_synthetic_kinds_are_what_the_reader_sees() -> None:
    kinds = {core.kind for core in nodes.machine("package:1 core:4(efficiency=2) pu:2").cores}
    assert kinds == {CoreKind.PERFORMANCE, CoreKind.EFFICIENCY}
