from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_policy.nri.singleton import AlreadyRunningError, only_instance

HOLDER = """
import sys
from pathlib import Path
from nri_policy.nri.singleton import only_instance
with only_instance(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_instance_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunningError, match=f"held by process {first.pid}") as refused:
            only_instance(path).__enter__()
        assert (refused.value.path, refused.value.holder) == (path, str(first.pid))
        first.kill()  # the lock goes with its holder, however that ends
    with only_instance(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_the_lock_is_free_again_after_its_use(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with only_instance(path):
            pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_held_by_nobody_in_particular_still_refuses(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with only_instance(path):
        path.write_text("")
        with pytest.raises(AlreadyRunningError, match="of unknown id"):
            only_instance(path).__enter__()


def test_a_lock_file_in_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        only_instance(tmp_path / "nowhere" / "lock").__enter__()
