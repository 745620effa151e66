"""What the doctor says of a real runtime, with NRI on and off."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.packages import SUITES, Programs
from tests.e2e.runtime import PATIENCE, Runtime

SCRIPT = Path(__file__).parents[2] / "configs/kustomize/containerd-1.7/enable-nri.sh"

Found = list[dict[str, str]]


def doctor(runtime: Runtime, control_socket: Path = Path("/none/control.sock")) -> Found:
    """Return what is found: the process whose NRI socket is asked about is the runtime meant."""
    words = ["--nri-socket", str(runtime.nri_socket), "--control-socket", str(control_socket)]
    return list(json.loads(CliRunner().invoke(main, ["doctor", *words, "-o", "json"]).stdout))


def said(found: Found, check: str) -> list[tuple[str, str]]:
    return [(each["verdict"], each["found"]) for each in found if each["check"] == check]


@contextmanager
def configured(programs: Programs, disable: str) -> Iterator[Containerd]:
    """Run a containerd whose configuration has another line than `disable = false`."""
    containerd = Containerd(programs)
    config = containerd.folder / "config.toml"
    config.write_text(config.read_text().replace("\ndisable = false", f"\n{disable}"))
    try:
        containerd.start()
        yield containerd
    finally:
        containerd.close()


def test_a_runtime_with_nri_on_is_fit_and_goes_on(runtime: Runtime, daemon: Daemon) -> None:
    found = doctor(runtime, daemon.control)
    socket = ("ok", f"the runtime listens at {runtime.nri_socket}")
    assert said(found, "nri") == [
        ("ok", f"NRI is enabled; plugins have {PATIENCE} s to register, {PATIENCE} s to answer"),
        socket,
    ]
    ((verdict, text),) = said(found, "runtime")
    assert verdict == "ok"
    assert text.startswith(("containerd ", "cri-o "))
    assert ", with NRI 0." in text
    assert any(verdict == "ok" and "it runs" in text for verdict, text in said(found, "daemon"))
    # who looked in left no plugin behind, and the next one finds what this one found
    assert said(doctor(runtime, daemon.control), "nri")[1] == socket


@pytest.mark.parametrize("suite", SUITES)
def test_a_runtime_with_nri_off_is_found_out(programs: Mapping[str, Programs], suite: str) -> None:
    with configured(programs[suite], "disable = true") as containerd:
        found = doctor(containerd)
        assert said(found, "nri") == [
            ("error", f"NRI is disabled, {containerd.folder / 'config.toml'} says so"),
            ("error", f"{containerd.nri_socket}: No such file or directory"),
        ]
        ((verdict, text),) = said(found, "runtime")
        assert (verdict, text.startswith("containerd ")) == ("ok", True)


@pytest.mark.parametrize("suite", SUITES)
def test_each_version_has_the_default_that_is_said_of_it(
    programs: Mapping[str, Programs], suite: str
) -> None:
    with configured(programs[suite], "") as containerd:
        verdicts = said(doctor(containerd), "nri")
    if programs[suite].version < (2, 0):
        assert verdicts[0] == ("error", "NRI is disabled, which is the default of this version")
    else:
        assert [verdict for verdict, _ in verdicts] == ["ok", "ok"]


def test_the_init_container_turns_nri_on_in_a_real_configuration(
    programs: Mapping[str, Programs], tmp_path: Path
) -> None:
    containerd = [str(programs["trixie"].containerd), "--config"]
    config = tmp_path / "config.toml"

    def read(*command: str) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout

    config.write_text(read(containerd[0], "config", "default"))
    nri = "io.containerd.nri.v1.nri"
    before = tomllib.loads(read(*containerd, str(config), "config", "dump"))
    assert before["plugins"][nri]["disable"] is True
    environment = {"CONTAINERD_CONFIG": str(config), "CONTAINERD_RESTART": "true"}
    subprocess.run(["/bin/sh", str(SCRIPT)], env={**os.environ, **environment}, check=True)
    after = tomllib.loads(read(*containerd, str(config), "config", "dump"))
    before["plugins"][nri]["disable"] = False
    assert after == before
