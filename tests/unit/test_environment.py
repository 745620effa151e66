from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.patience import HANGS
from tools import environment
from tools.environment import SetupError


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `fetch` returns, whatever is asked for."""
    root = tmp_path / "the root"
    monkeypatch.setattr(environment, "fetch", lambda *_, **__: root)
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    return root


def test_a_compiler_that_is_not_there_is_named() -> None:
    assert environment.complaint({"CC": "no-such-cc -pthread"}) == "no-such-cc: not found"


def test_a_compiler_that_fails_is_reported_with_its_complaint(tmp_path: Path) -> None:
    cc = script(tmp_path / "cc", "echo broken >&2", "exit 1")
    assert environment.complaint({"CC": str(cc)}) == "broken"


def test_a_compiler_whose_libraries_do_not_load_is_no_compiler(tmp_path: Path) -> None:
    cc = script(tmp_path / "cc", 'for last; do :; done; echo "not a library" > "$last"', "exit 0")
    assert "ImportError" in environment.complaint({"CC": str(cc)})


def test_a_fetched_compiler_that_does_not_work_either_is_an_error(
    fetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(fetched / "usr" / "bin" / "gcc", "echo wrong machine >&2", "exit 1")
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(SetupError, match="wrong machine"):
        environment.compiler()


def test_a_fetched_compiler_runs_in_its_root_with_the_libraries_that_the_system_lacks(
    fetched: Path,
) -> None:
    script(fetched / "usr" / "bin" / "gcc", 'echo "$@"', "ls $LD_LIBRARY_PATH")
    library = fetched / "usr" / "lib" / "x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "libnri-policy-has-none.so.1").touch()
    cc = environment.fetched_compiler()
    done = subprocess.run([cc, "-c", "x.c"], capture_output=True, text=True, check=True)
    flags, *libraries = done.stdout.splitlines()
    assert flags == f"--sysroot={fetched} -B{fetched}/usr/bin -c x.c"
    assert libraries == ["libnri-policy-has-none.so.1"]


def test_a_library_that_the_system_has_is_not_taken_from_elsewhere(fetched: Path) -> None:
    folders = [path.parent for path in Path("/usr/lib").glob("*-linux-gnu*/libc.so.6")]
    if not folders:
        pytest.skip("needs a system with Debian's library folders")
    script(fetched / "usr" / "bin" / "gcc", 'ls "$LD_LIBRARY_PATH"')
    library = fetched / "usr" / "lib" / folders[0].name
    library.mkdir(parents=True)
    (library / "libc.so.6").touch()
    assert subprocess.check_output([environment.fetched_compiler()]) == b""


def test_certificates_are_debians_where_the_system_has_none(
    fetched: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "SYSTEM_CERTIFICATES", tmp_path / "nothing")
    folder = fetched / "usr" / "share" / "ca-certificates" / "mozilla"
    folder.mkdir(parents=True)
    (folder / "A.crt").write_text("first\n")
    (folder / "B.crt").write_text("second\n")
    assert environment.certificates().read_text() == "first\nsecond\n"


def test_a_failing_step_ends_the_set_up_with_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    assert environment.main(Path(os.devnull, "venv")) == 1
    assert "set-up failed: " in capsys.readouterr().err


def test_a_terminal_shows_for_how_long_the_set_up_has_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = threading.Event()
    monkeypatch.setattr(environment, "Event", lambda: Ticks(shown))
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with environment.seconds_shown("packages"):
            assert not terminal or shown.wait(HANGS)
        assert ("packages: 0:00" in capsys.readouterr().err) is terminal


class Ticks(threading.Event):
    """An event whose `wait` for the next second ends at once."""

    def __init__(self, shown: threading.Event) -> None:
        super().__init__()
        self._shown, self._waits = shown, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._waits += 1
        if self._waits == 1:
            return False
        self._shown.set()
        return super().wait(None if timeout is None else HANGS)
