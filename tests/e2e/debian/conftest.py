"""Two releases of the commit that is checked out, the second's version being later."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import unavailable
from tools import release
from tools.debs import DebsError
from tools.environment import SetupError

SUITES = {"bookworm": 12, "trixie": 13}
OLD, NEW = "1.0", "1.1"


def package(releases: Mapping[str, Path], version: str, suite: str) -> Path:
    """Return the Debian package of the version for the suite."""
    (found,) = releases[version].glob(f"*~deb{SUITES[suite]}_*.deb")
    return found


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the folders of two releases, the second's version being later."""
    if os.geteuid() != 0:
        unavailable("Debian packages are built and installed by root")
    folders = {}
    try:
        for version in (OLD, NEW):
            source = tmp_path_factory.mktemp("source") / "exported"
            release.export(source)
            project = source / "pyproject.toml"
            line = f'version = "{version}"'
            text, changed = re.subn(r'(?m)^version = ".*"$', line, project.read_text())
            assert changed == 1
            project.write_text(text)
            folders[version] = tmp_path_factory.mktemp("dist")
            release.build_from(source, folders[version], list(SUITES))
    except (DebsError, SetupError) as error:
        unavailable(f"the packages cannot be built: {error}")
    return folders
