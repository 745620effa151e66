"""Version N is replaced by N+1, as an administrator does it, under running containers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.store.journal import open_journal
from tests.e2e.conftest import unavailable
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed, resources
from tests.e2e.runtime import Runtime
from tests.support.wheel import build_wheel, make_venv
from tools import release
from tools.environment import SetupError

VERSIONS = ("1.0", "1.1")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    try:
        return [build_wheel(tmp_path_factory.mktemp("wheel"), version) for version in VERSIONS]
    except SetupError as error:
        unavailable(f"what builds wheels cannot be fetched: {error}")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return make_venv(tmp_path / "venv")


def decisions(daemon: Daemon) -> list[tuple[int, float]]:
    """Return which decisions its journal holds: their numbers and times."""
    with open_journal(daemon.state / "store" / "state.db") as journal:
        return [(record.seq, record.time) for record in journal.records()]


def version(daemon: Daemon) -> str:
    return str(json.loads(daemon.ask("status", "-o", "json").stdout)["version"])


@pytest.fixture
def daemon(
    venv: Path, runtime: Runtime, settings: Mapping[str, Any], host_root: Path, tmp_path: Path
) -> Iterator[Daemon]:
    daemon = Daemon(
        tmp_path,
        settings=settings,
        host_root=host_root,
        nri_socket=runtime.nri_socket,
        program=venv / "bin" / "nri-policy",
    )
    yield daemon
    daemon.close()


# the package is ours; what each runtime lists to a new daemon, test_restarts looks at
@pytest.mark.parametrize("runtime", ["forky"], indirect=True)
def test_an_upgrade_keeps_the_state_and_moves_no_container(
    wheels: Sequence[Path], venv: Path, daemon: Daemon, stage: Kubelet, runtime: Runtime
) -> None:
    python = venv / "bin" / "python"
    release.install(python, "--no-index", wheels[0])
    daemon.start()
    assert version(daemon) == VERSIONS[0]
    own, mixed = stage.run("own", guaranteed(2000)), stage.run("mixed", guaranteed(1500))
    shared = stage.run("shared", resources(milli_cpu=500))
    rest = stage.run("rest", BEST_EFFORT)

    # The old version goes on while the new one is laid in its place.
    release.install(python, "--no-index", "--upgrade", wheels[1])
    late = stage.run("late", guaranteed(1000))
    assert version(daemon) == VERSIONS[0]
    containers = (own, mixed, shared, rest, late)
    before = {container.id: runtime.played(container.id) for container in containers}
    told = len(runtime.recorded())
    known = daemon.containers()
    decided = decisions(daemon)
    daemon.stop()
    daemon.start()
    assert version(daemon) == VERSIONS[1]

    # The runtime takes this event after the answer to Synchronize has taken effect.
    pod = stage.run_pod("next", {"main": guaranteed(2000)})
    for call in runtime.recorded()[told:]:
        if call.container in before:
            have = before[call.container]
            assert call.cpus in {"", str(have.cpus)}
            assert call.mems in {"", str(have.mems)}
    assert daemon.containers() == known
    assert len(decided) >= len(containers)
    assert decisions(daemon)[: len(decided)] == decided
    new = pod.create("main")
    new.start()
    cpus = [runtime.played(each.id).cpus for each in (own, late, new)]
    assert [len(each) for each in cpus] == [2, 1, 2]
    assert len(CPUSet.union(cpus)) == 5
