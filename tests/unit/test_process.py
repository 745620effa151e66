"""What runs beside the daemon neither takes it down nor stops unseen."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from nri_policy.nri.plugin import Identity
from nri_policy.process import AGAIN, Options, keep_up, run
from nri_policy.settings import Settings, SettingsError
from nri_policy.settings_source.file import SettingsFile


def test_a_part_that_fails_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []
    slept: list[float] = []

    async def part() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError("a bug of ours")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(keep_up("audit", part, sleep))
    assert runs == [0, 1, 2]
    assert slept == [AGAIN, AGAIN]
    assert [record.getMessage() for record in caplog.records] == [
        "event=failed part=audit again-in=5s"
    ] * 2


def test_a_hangup_before_the_first_settings_are_read_does_not_end_the_daemon(
    tmp_path: Path,
) -> None:
    """It would by default, and count as an end in order: nobody would start the daemon again."""
    before = signal.signal(signal.SIGHUP, lambda *_: pytest.fail("nobody has taken it over"))

    class Hasty(SettingsFile):
        def load(self) -> Settings:
            signal.raise_signal(signal.SIGHUP)
            raise SettingsError("a file", ())

    options = Options(
        host_root=tmp_path,
        runtime=tmp_path / "nri.sock",
        identity=Identity(name="nri-policy", index="90"),
        state_dir=tmp_path / "state",
        control_socket=tmp_path / "control.sock",
        kubeconfig=None,
        node_name="a",
        config_namespace="kube-system",
        nrt_file=None,
        once_synchronized_exit=False,
    )
    try:
        with pytest.raises(SettingsError):
            asyncio.run(run(Hasty(tmp_path / "settings.yaml"), options))
    finally:
        signal.signal(signal.SIGHUP, before)
