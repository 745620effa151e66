"""The image, built by Debian's buildah in a fresh system, on a base made without a registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import unavailable
from tools import debs, release
from tools.debian import Machine, base
from tools.debs import DebsError

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
IMAGE, BASE = "localhost/nri-policy", "localhost/debian"
PLAYED = "package:2 numa:2 core:2 pu:2"

# The same suite's libraries, where the loader looks.
LAY = """\
set -eu
echo $1/usr/lib/*-linux-gnu >/etc/ld.so.conf.d/buildah.conf
ldconfig
cp -r $1/etc/containers /etc/
ln -s $1/usr/share/containers /usr/share/
ln -s $1/usr/bin/buildah /usr/bin/
"""


class Builder:
    """buildah in the machine, with its storage in the folder."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.folder = folder
        self._machine = machine

    def __call__(self, command: str, *arguments: str | Path) -> str:
        """Return what the buildah command prints."""
        # Neither a daemon nor overlays nor namespaces: what a chroot has.
        storage = ["--storage-driver=vfs", f"--root={self.folder}/all", f"--runroot={self.folder}"]
        return self._machine.run("buildah", *storage, *command.split(), *arguments)


def host_settings(folder: Path) -> list[str]:
    """Return the options that let a build reach the archives as this host does."""
    apt = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    lines = [
        line for line in apt.splitlines() if line.startswith(("Acquire::http", "Acquire::ftp"))
    ]
    (folder / "apt").write_text("".join(f"{line}\n" for line in lines))
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    known = dict(line.split("=", 1) for line in pip.splitlines())
    options = {name.split(".")[-1]: value.strip("'") for name, value in known.items()}
    options = {name: options[name] for name in ("cert", "index-url", "proxy") if name in options}
    volumes = {"apt": "/etc/apt/apt.conf.d/host", "pip": "/etc/pip.conf"}
    if "cert" in options:
        shutil.copy(options["cert"], folder / "cert")
        volumes["cert"] = options["cert"] = "/etc/host-certificates"
    text = "".join(f"{name} = {value}\n" for name, value in options.items())
    (folder / "pip").write_text(f"[global]\n{text}")
    return [f"--volume={folder / name}:{target}:ro" for name, target in volumes.items()]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A builder that has built the image."""
    if os.geteuid() != 0:
        unavailable("images are built by root")
    folder = tmp_path_factory.mktemp("image")
    try:
        programs = debs.fetch("buildah", suite="bookworm", dependencies=True)
        system = base("trixie")
    except DebsError as error:
        unavailable(f"buildah cannot be fetched: {error}")
    release.export(folder / "source")
    with Machine("bookworm", [Path(tempfile.gettempdir()), debs.CACHE, system, CONFIGS]) as machine:
        machine.run("sh", "-c", LAY, "sh", programs)
        for file in (Path("/etc/resolv.conf"), Path("/etc/hosts")):
            machine.run("sh", "-c", f"cat >{file}", stdin=file.read_text())
        builder = Builder(machine, folder)
        container = builder("from scratch").strip()
        builder("add --quiet", container, system, "/")
        builder("commit --rm --quiet", container, BASE)
        build = "build --isolation chroot --network host --pull-never --quiet"
        arguments = [f"--build-arg=BASE={BASE}", "--tag", IMAGE, *host_settings(folder)]
        builder(build, *arguments, folder / "source")
        yield builder
    shutil.rmtree(folder)  # the images are large


def test_the_image_starts_the_daemon_with_what_the_manifests_say(builder: Builder) -> None:
    inspected = json.loads(builder("inspect --type image", IMAGE))
    image: dict[str, Any] = inspected["OCIv1"]["config"]
    assert (image["Entrypoint"], image["Cmd"]) == (["/usr/bin/nri-policy"], ["run"])
    text = (CONFIGS / "kubernetes" / "daemonset.yaml").read_text()
    (daemon_set,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "run"
    assert "command" not in container


def test_the_image_has_the_program_and_nothing_that_builds_it(builder: Builder) -> None:
    container = builder("from --pull-never", IMAGE).strip()
    run = f"run --isolation chroot --volume {CONFIGS}:/configs:ro"
    assert "nri-policy, version" in builder(run, container, "--", "nri-policy", "--version")
    simulate = ("nri-policy", "simulate", "/configs/demo.yaml", "--synthetic", PLAYED)
    assert "Guaranteed" in builder(run, container, "--", *simulate)
    udev = "import pyudev; pyudev.Context()"
    builder(run, container, "--", "/usr/lib/nri-policy/bin/python", "-c", udev)
    for program in ("cc", "gcc", "pip", "pip3"):
        found = builder(run, container, "--", "sh", "-c", f"command -v {program} || true")
        assert not found
    builder("rm", container)
