"""The exact versions, with their hashes, of what is installed with a release and what builds it.

Resolves the requirements of pyproject.toml with pip, for every Python and processor that releases
are for, and writes release/runtime.lock and release/build.lock. Needs the package index.

    python3 -m tools.lock    # in the virtual environment; `make lock` does it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
LOCKS = PROJECT / "release"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
#: Versions of the C library that wheels may ask for: Debian 12 has 2.36.
C_LIBRARIES = ("2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34", "2_35")

HEADER = "# Made by `make lock` of pyproject.toml; for pip's --require-hashes.\n"


def main() -> int:
    """Write both files."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    runtime = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["cluster"],  # the image is for both sides
    ]
    build = [*project["build-system"]["requires"], "pip"]
    for name, requirements in (("runtime", runtime), ("build", build)):
        (LOCKS / f"{name}.lock").write_text(HEADER + lines(requirements))
    return 0


def lines(requirements: Sequence[str]) -> str:
    """Return what satisfies the requirements everywhere, one package a line."""
    hashes: dict[str, set[str]] = {}
    for python in PYTHONS:
        for processor in PROCESSORS:
            # The versions found for the first are required for all others.
            for found in resolve(requirements, hashes, python, processor):
                pin = f"{found['metadata']['name'].lower()}=={found['metadata']['version']}"
                archive = found["download_info"]["archive_info"]
                hashes.setdefault(pin, set()).add(archive["hashes"]["sha256"])
    return "".join(
        " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes[pin]))]) + "\n"
        for pin in sorted(hashes)
    )


def resolve(
    requirements: Sequence[str], pins: Iterable[str], python: str, processor: str
) -> list[dict[str, Any]]:
    """Return what pip would install, with the versions *pins* where it needs these packages."""
    platforms = [f"--platform=manylinux_{c}_{processor}" for c in C_LIBRARIES]
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraints.write_text("".join(f"{pin}\n" for pin in pins))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--only-binary=:all:", f"--python-version={python}"]
        command += ["--target", folder, "--constraint", str(constraints)]
        command += ["--report", str(report), *platforms, *requirements]
        # Use only the index: a local folder lacks files for other processors.
        environment = {n: v for n, v in os.environ.items() if n != "PIP_FIND_LINKS"}
        subprocess.run(command, check=True, env=environment)
        installed: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return installed


if __name__ == "__main__":
    sys.exit(main())
