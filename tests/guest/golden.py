"""Golden triples: of each emulated machine a capture, the tree that it reads as, and its JSON.

The normal tests compare the three, and a machine that is booted is compared with them, so that they
stay true. To take them anew, of all machines or of those that `-k` names:

    NRI_POLICY_TAKE_CAPTURES=1 .venv/bin/pytest tests/guest
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main

FOLDER = Path(__file__).with_name("captures")
# What a kernel keeps of each node's memory for itself differs from version to version.
KEPT = 0.05


def files(name: str) -> tuple[Path, Path, Path]:
    """Return where the machine's capture is, and the tree and the JSON that it reads as."""
    return FOLDER / f"{name}.tar.xz", FOLDER / f"{name}.txt", FOLDER / f"{name}.json"


def shown(capture: Path, form: str) -> str:
    """Return what `topology` prints of a capture, as `table` or `json`."""
    runner = CliRunner(env={"COLUMNS": "100"})
    command = ["topology", "--capture", str(capture), "-o", form]
    done = runner.invoke(main, command, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def take(name: str, capture: bytes) -> None:
    """Make *capture* the machine's golden one, with what is read from it."""
    FOLDER.mkdir(exist_ok=True)
    kept, tree, document = files(name)
    kept.write_bytes(capture)
    tree.write_text(shown(kept, "table"))
    document.write_text(shown(kept, "json"))


def expected(name: str) -> Any:
    """Return the golden JSON, which any kernel's that has the machine's memory is equal to."""
    document = json.loads(files(name)[2].read_text())
    for node in document["machine"]["numa_nodes"]:
        node["memory"] = pytest.approx(node["memory"], rel=KEPT)
    return document
