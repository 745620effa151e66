"""The workflow of a release: its steps are targets of the Makefile, and actionlint takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import lock

PROJECT = Path(__file__).resolve().parents[2]
WORKFLOW = PROJECT / ".github/workflows/release.yml"
DOCUMENT: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
JOBS: dict[str, dict[str, Any]] = DOCUMENT["jobs"]
MAKEFILE = (PROJECT / "Makefile").read_text()


def steps() -> list[dict[str, Any]]:
    return [step for job in JOBS.values() for step in job["steps"]]


def test_what_it_makes_are_targets_that_run_anywhere() -> None:
    called = {
        target
        for step in steps()
        for target in re.findall(r"(?m)^make (?:--silent )?([a-z-]+)", step.get("run", ""))
    }
    assert called == {"check-tag", "release", "try-wheel", "chart", "notes", "checksums"}
    assert called <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_it_publishes_for_a_tag_only() -> None:
    ref = "startsWith(github.ref, 'refs/tags/')"
    assert JOBS["publish"]["if"] == ref
    assert set(JOBS["publish"]["needs"]) == {"wheel", "chart", "image"}
    writing = [name for name, job in JOBS.items() if "write" in str(job.get("permissions"))]
    assert writing == ["image", "publish"]
    assert DOCUMENT["permissions"] == {"contents": "read"}
    (built,) = [step for step in JOBS["image"]["steps"] if step.get("id") == "build"]
    assert built["with"]["push"] == f"${{{{ {ref} }}}}"
    for step in JOBS["image"]["steps"]:
        if "login" in step.get("uses", "") or "attest" in step.get("uses", ""):
            assert step["if"] == ref


def test_wheels_are_tried_on_each_python_and_processor_of_the_locks() -> None:
    matrix = JOBS["wheel"]["strategy"]["matrix"]
    assert matrix["python"] == list(lock.PYTHONS)
    assert matrix["architecture"] == list(lock.PROCESSORS)
    built = [each["architecture"] for each in JOBS["files"]["strategy"]["matrix"]["include"]]
    assert built == list(lock.PROCESSORS)


@pytest.mark.parametrize(("tag", "taken"), [("v{}", True), ("v{}1", False), ("", False)])
def test_a_tag_that_is_not_the_version_is_refused(tag: str, taken: bool) -> None:
    project = (PROJECT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.*)"', project, re.MULTILINE)
    command = ["make", "--silent", "check-tag", f"TAG={tag.format(version)}"]
    done = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
    assert (done.returncode == 0) == taken
    assert (f"is not v{version}" in done.stderr) != taken


def test_the_notes_are_what_the_change_log_says_of_the_version() -> None:
    command = ["make", "--silent", "notes"]
    notes = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    log = (PROJECT / "CHANGELOG.md").read_text()
    assert notes.strip()
    assert notes in log
    assert "\n## " not in notes


def test_actionlint_takes_it() -> None:
    program = shutil.which("actionlint", path=f"{PROJECT / '.venv/bin'}:/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("needs actionlint: `make kubernetes` fetches it")
    done = subprocess.run([program, WORKFLOW], check=False, capture_output=True, text=True)
    assert not done.stdout + done.stderr
