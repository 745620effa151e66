"""The samples in configs/ and systemd/ say what they mean to."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = PROJECT / "configs"
UNIT = PROJECT / "systemd" / "nri-policy.service"


@pytest.fixture
def manifests() -> dict[str, Any]:
    text = (CONFIGS / "kubernetes" / "daemonset.yaml").read_text()
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


@pytest.fixture
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["DaemonSet"]["spec"]["template"]["spec"]


def test_the_drop_ins_turn_nri_on() -> None:
    containerd = tomllib.loads((CONFIGS / "containerd" / "nri.toml").read_text())
    assert containerd["plugins"]["io.containerd.nri.v1.nri"] == {"disable": False}
    crio = tomllib.loads((CONFIGS / "crio" / "10-nri.conf").read_text())
    assert crio == {"crio": {"nri": {"enable_nri": True}}}


def test_the_pod_mounts_volumes_that_it_has_and_sees_the_nodes_files_read_only(pod: Any) -> None:
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"nri", "state", "control"}


def test_files_shown_to_containers_have_the_same_path_on_the_node_and_in_the_pod(pod: Any) -> None:
    (state,) = (volume for volume in pod["volumes"] if volume["name"] == "state")
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "state")
    assert state["hostPath"]["path"] == mount["mountPath"]


def test_the_pod_has_no_capability_and_cannot_gain_one(pod: Any) -> None:
    assert pod["containers"][0]["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.fixture
def systemd_analyze() -> str:
    program = shutil.which("systemd-analyze")
    if not program:
        pytest.skip("needs systemd-analyze, which this system has not")
    return program


def test_systemd_understands_every_line_of_the_unit(systemd_analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/nri-policy", "/bin/true"))
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_stays_as_tight_as_it_is(systemd_analyze: str) -> None:
    command = [systemd_analyze, "security", "--offline=true", "--threshold=20", str(UNIT)]
    subprocess.run(command, check=True, capture_output=True)
