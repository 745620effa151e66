"""The Debian package of one suite: what release/debian/build makes in a fresh system of it.

The machine has no network: the locked packages are fetched out here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tools.debian import Machine
from tools.environment import run
from tools.lock import C_LIBRARIES


def build(  # noqa: PLR0913 - keywords: the files of one release
    suite: str, *, wheel: Path, bill: Path, source: Path, tools: Path, variables: Mapping[str, str]
) -> None:
    """Build the package beside the *wheel*.

    *bill* is the bill of materials, *source* the project's files, *tools* the Python that has pip;
    the *variables* say the time of the package's files.
    """
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder)
        wheels, out = shared / "wheels", shared / "out"
        for each in (wheels, out):
            each.mkdir()
        shutil.copy(wheel, wheels)
        shutil.copy(bill, shared)
        shutil.copytree(source, shared / "source")
        (pip,) = tools.parents[1].glob("lib/python3.*/site-packages/pip")
        shutil.copytree(pip, shared / "pip" / "pip")
        with Machine(suite, [shared]) as machine:
            python = machine.run(
                "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
            )
            fetch(wheels, tools, python.strip(), machine.run("uname", "-m").strip())
            version = wheel.name.split("-")[1]
            script = 'cd "$0" && exec release/debian/build "$@"'
            parts = (version, wheels, shared / "pip", shared / bill.name, out)
            machine.run("sh", "-c", script, shared / "source", *parts, **variables)
        (package,) = out.iterdir()
        shutil.copy(package, wheel.parent)


def fetch(wheels: Path, pip: Path, python: str, processor: str) -> None:
    """Fetch the locked packages for this *python* ("3.11") and *processor* into the folder."""
    command: list[str | Path] = [
        pip,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
    ]
    command += ["--no-deps", "--require-hashes", "--requirement", "release/runtime.lock"]
    command += ["--dest", wheels, "--only-binary=:all:", f"--python-version={python}"]
    command += [f"--platform=manylinux_{each}_{processor}" for each in C_LIBRARIES]
    run(command)
