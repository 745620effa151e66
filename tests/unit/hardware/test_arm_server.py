"""A server with Arm processors, as their kernels describe it.

No core has a second thread, cores come in clusters, no cache has an id, sizes of caches are not
known, the last cache is the system's and not in sysfs, and firmware numbers packages and cores by
its own offsets. `qemu-arm64-dt-clusters` in `data` is such a kernel's own description.
"""

from __future__ import annotations

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.engine.grant import Decision
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from tests.support import nodes

from .conftest import Change, Read

CPU = "sys/devices/system/cpu"
SPEC = "package:2 cluster:4 core:2"  # CPUs 0-7 and 8-15, a NUMA node each, and clusters of two


def arm_server(read: Read) -> Machine:
    changes: dict[str, Change] = {}
    for cpu in range(16):
        package, core = divmod(cpu, 8)
        topology = f"{CPU}/cpu{cpu}/topology"
        changes |= {
            f"{topology}/physical_package_id": ("36", "8442")[package],
            f"{topology}/core_id": str(6002 + 98 * core),  # the same ones in each package
            f"{topology}/cluster_id": str(2180 + 196 * (core // 2)),
            f"{topology}/die_id": "-1",
            f"{topology}/die_cpus_list": str(cpu),
            f"{CPU}/cpu{cpu}/cache/index3": None,
            f"{CPU}/cpu{cpu}/cache/index2/size": None,
        }
    return read(SPEC, changes)


def test_cores_are_told_apart_by_their_cpus_and_have_one_thread_each(read: Read) -> None:
    machine = arm_server(read)
    assert [str(core.cpus) for core in machine.cores] == [str(cpu) for cpu in range(16)]
    assert [(each.id, str(each.cpus)) for each in machine.packages] == [
        (36, "0-7"),
        (8442, "8-15"),
    ]
    assert [(die.package, str(die.cpus)) for die in machine.dies] == [(36, "0-7"), (8442, "8-15")]


def test_the_last_cache_of_the_system_is_no_l3_domain(read: Read) -> None:
    machine = arm_server(read)
    assert {(each.level, each.type) for each in machine.caches} == {
        (1, "data"),
        (1, "instruction"),
        (2, "unified"),
    }
    pools = Engine(machine, nodes.settings()).layout.tree.pools
    assert {pool.name for pool in pools} == {"root", "socket #36", "socket #8442"}


def test_exclusive_cpus_are_whole_cores_of_one_socket(read: Read) -> None:
    engine = Engine(arm_server(read), nodes.settings(fullCores="require"))
    decision = engine.handle(Created(container=nodes.container(3000)))
    assert isinstance(decision, Decision)
    assert decision.grant is not None
    assert len(decision.grant.exclusive) == 3
    assert decision.grant.exclusive <= CPUSet.parse("8-15")
