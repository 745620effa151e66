"""What `run` makes of its options and of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli.node.run import command
from nri_policy.daemon.process import Options
from nri_policy.nri.plugin import Identity
from nri_policy.settings import Settings


def options(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> Options | None:
    """Return the daemon's options; None where there are none."""
    seen: list[Options] = []

    async def run(load: Callable[[], Settings], options: Options) -> None:
        del load
        seen.append(options)

    monkeypatch.setattr("nri_policy.cli.node.run.run", run)
    CliRunner().invoke(command, arguments, env=environment)
    return seen[0] if seen else None


def test_a_runtime_that_starts_its_plugin_says_who_it_is_and_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = options(
        monkeypatch, NRI_PLUGIN_NAME="policy", NRI_PLUGIN_IDX="07", NRI_PLUGIN_SOCKET="3"
    )
    assert started is not None
    assert started.identity == Identity(name="policy", index="07")
    assert started.runtime == 3


def test_without_a_runtimes_word_the_daemon_connects_to_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = options(monkeypatch, "--nri-socket", "/run/x.sock")
    assert started is not None
    assert started.identity == Identity(name="nri-policy", index="90")
    assert started.runtime == Path("/run/x.sock")


@pytest.mark.parametrize("socket", ["", "x", "-1", "0", "2"])
def test_a_socket_that_can_be_none_is_refused(monkeypatch: pytest.MonkeyPatch, socket: str) -> None:
    assert options(monkeypatch, "--nri-plugin-socket", socket) is None
