"""CPU classes from the reserved CPUs to the last container's end, on a machine of two packages.

What nri-plugins' own test of CPU classes demands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import SettingsError, from_spec
from tests.support.daemon import pod
from tests.support.fake_cpus import FakeCPUs, FakeFiles
from tests.support.patience import HANGS
from tests.support.tunables import TunedHost

KEY = "cpu-class.resource-policy.nri.io/container.main"
MACHINE = "package:2 core:8 pu:1"
MIN, BASE, TURBO = 800_000, 2_900_000, 3_800_000  # kHz
RANGES = {
    "shared": (MIN, BASE),
    "reserved": (MIN, TURBO),
    "exclusive": (TURBO, TURBO),
    "class1": (BASE, BASE),
    "class2": (MIN, MIN),
}
WORDS = {MIN: "min", BASE: "base", TURBO: "turbo"}
SPEC: dict[str, Any] = {
    "reservedResources": {"cpu": "cpuset:0"},
    "cpuClasses": [
        {"name": name, "minFreq": WORDS[low], "maxFreq": WORDS[high]}
        for name, (low, high) in RANGES.items()
    ],
    "sharedPoolCPUClass": "shared",
    "reservedPoolCPUClass": "reserved",
    "defaultExclusiveCPUClass": "exclusive",
}


def classes_of(cpus: FakeCPUs) -> dict[str, CPUSet]:
    """Return the CPUs of each class, by the frequencies that are set."""
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in range(16):
        folder = f"cpufreq/policy{cpu}/scaling_"
        low, high = (int(cpus.read(f"{folder}{end}_freq")) for end in ("min", "max"))
        found.setdefault((low, high), []).append(cpu)
    return {name: CPUSet(found[each]) for name, each in RANGES.items() if each in found}


def test_each_cpu_is_in_the_class_of_what_it_is_used_for(tmp_path: Path) -> None:
    cpus = FakeCPUs(tmp_path)
    for cpu in range(16):
        cpus.add_policy(cpu, [cpu], low=MIN, base=BASE, high=TURBO)
    host = TunedHost(tmp_path, FakeFiles(cpus))

    async def test() -> None:
        async with host.serving(MACHINE, listening=False, **SPEC) as up:

            def check(exclusive: Iterable[str] = (), **others: str) -> None:
                up.daemon.tuner_link.inform()
                placed = up.daemon.node.view.by_name()
                expected = {
                    "reserved": CPUSet([0]),
                    "exclusive": CPUSet.union(
                        placed[f"default/{each}/main"].grant.own for each in exclusive
                    ),
                    **{
                        name: placed[f"default/{each}/main"].grant.own
                        for name, each in others.items()
                    },
                }
                used = CPUSet.union(expected.values())
                expected["shared"] = CPUSet(range(16)) - used
                assert classes_of(cpus) == {name: each for name, each in expected.items() if each}

            check()
            assert not await up.start(*(pod(f"c{number}", "1") for number in range(4)))
            check(["c0", "c1", "c2", "c3"])
            for number in range(4):
                await up.runtime.stop_pod(up.runtime.container(f"c{number}/main").pod)
            check()
            assert not await up.start(
                pod("one", "2", annotations={KEY: "class1"}),
                pod("two", "2", annotations={KEY: "class2"}),
                pod("other", "2"),
            )
            check(["other"], class1="one", class2="two")
            for name in ("one", "two", "other"):
                await up.runtime.stop_pod(up.runtime.container(f"{name}/main").pod)
            check()
            asked = {KEY: "class1"}
            for refused in (
                pod("burstable", "1", shared=True, annotations=asked),
                pod("best-effort", annotations=asked),
                pod("fraction", "250m", annotations=asked),
            ):
                (error,) = await up.start(refused)
                assert "only exclusive CPUs have a class" in str(error)
            check()

    asyncio.run(asyncio.wait_for(test(), HANGS))


@pytest.mark.parametrize(
    "field", ["reservedPoolCPUClass", "sharedPoolCPUClass", "defaultExclusiveCPUClass"]
)
def test_settings_name_no_class_that_they_do_not_define(field: str) -> None:
    with pytest.raises(SettingsError, match=rf"{field}: 'nonexistent'"):
        from_spec(SPEC | {field: "nonexistent"}, "here")
