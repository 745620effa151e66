from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.synthetic import write


class Link(NamedTuple):
    target: str


Change = str | bytes | Link | None  # new content, or None: there is no such file or folder
Plant = Callable[..., Path]
Read = Callable[..., Machine]


def change(root: Path, changes: Mapping[str, Change]) -> None:
    """Apply *changes*, by path, in order; CPUs that share a folder get copies where one changes."""
    for path, content in changes.items():
        target = root / path
        here = root
        for part in Path(path).parts[:-1]:
            here /= part
            if here.is_symlink():
                original = here.resolve()
                here.unlink()
                shutil.copytree(original, here, symlinks=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if isinstance(content, Link):
            target.symlink_to(content.target)
        elif content is not None:
            target.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write a tree: of a synthetic machine if a specification is given, then changed."""

    def plant(spec: str | None, changes: Mapping[str, Change] | None = None) -> Path:
        root = tmp_path / "root"
        root.mkdir()
        if spec is not None:
            write(spec, root)
        change(root, changes or {})
        return root

    return plant


@pytest.fixture
def read(plant: Plant) -> Read:
    """Read the machine of a tree that is written like `plant` writes it."""

    def read(spec: str | None, changes: Mapping[str, Change] | None = None) -> Machine:
        return discover(plant(spec, changes))

    return read
