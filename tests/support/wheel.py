"""Wheels of this project as it is here, with the kernels that this environment was built with.

And environments to install them in.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from sys import implementation

import nri_policy
from tools import release

_PROJECT = Path(__file__).resolve().parents[2]
_SOURCES = (
    *("LICENSE", "README.md", "pyproject.toml", "setup.py"),
    *("configs", "docs", "native", "nri_policy"),
)


def build_wheel(folder: Path, version: str | None = None) -> Path:
    """Return a wheel that is built in *folder*, under another *version* than the project's if any.

    Raises SetupError where what builds cannot be fetched.
    """
    tools = release.builder()  # before the kernels are copied: they are to be newer than all of it
    source = folder / "source"
    source.mkdir()
    for name in _SOURCES:
        part = _PROJECT / name
        if part.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(part, source / name, ignore=ignored)
        else:
            shutil.copy2(part, source)
    if version is not None:
        project = source / "pyproject.toml"
        text, changed = re.subn(
            r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text()
        )
        assert changed == 1
        project.write_text(text)
    _spare_compilation(source)
    release.hook("build_wheel", folder, tools=tools, source=source, variables={})
    shutil.rmtree(source)
    (wheel,) = folder.glob("nri_policy-*.whl")
    return wheel


def make_venv(folder: Path) -> Path:
    """Make a virtual environment that has what the project needs, but not the project."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("platlib"))
    return folder


def _spare_compilation(source: Path) -> None:
    """Lay the kernels where the build looks for what it has built.

    Everything there is new: what builds may have been installed since the kernels were made, and
    Cython's own files count as their sources.
    """
    (package,) = map(Path, nri_policy.__path__)
    generated = Path("build", "cython")
    shutil.copytree(_PROJECT / generated, source / generated, copy_function=shutil.copy)
    python = f"{sysconfig.get_platform()}-{implementation.cache_tag}"
    built = source / "build" / f"lib.{python}" / "nri_policy" / "native"
    built.mkdir(parents=True)
    kernels = [*package.glob("native/*.so")]
    assert kernels
    for kernel in kernels:
        shutil.copy(kernel, built)
