from __future__ import annotations

import sys

import pytest

from nri_policy.cli.terminal.progress import progress


def test_nothing_is_printed_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("replaying", 3) as step:
        step()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("total", "shown"), [(3, "replaying"), (None, "replaying")])
def test_a_terminal_shows_it_on_stderr_alone(
    total: int | None,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("replaying", total) as step:
        step()
    out, err = capsys.readouterr()
    assert out == ""
    assert shown in err
    with progress("replaying", total, shown=False) as step:
        step()
    assert capsys.readouterr() == ("", "")
