"""What `run` makes of its options and of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cli.node.run import command
from nri_policy.daemon.process import Options
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.settings import Address, Settings
from nri_policy.settings_sources.settings_file import SettingsFile


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
    assert started.identity == PluginIdentity(name="policy", index="07")
    assert started.runtime == 3


def test_without_a_runtimes_word_the_daemon_connects_to_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = options(monkeypatch, "--nri-socket", "/run/x.sock")
    assert started is not None
    assert started.identity == PluginIdentity(name="nri-policy", index="90")
    assert started.runtime == Path("/run/x.sock")


@pytest.mark.parametrize("socket", ["", "x", "-1", "0", "2"])
def test_a_socket_that_can_be_none_is_refused(monkeypatch: pytest.MonkeyPatch, socket: str) -> None:
    assert options(monkeypatch, "--nri-plugin-socket", socket) is None


class Started:
    """The daemon as a command line of nri-plugins' DaemonSet starts it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        self.options: Options | None = None
        self.config: Path | None = None

        async def run(settings: SettingsFile, options: Options) -> None:
            self.options, self.config = options, settings.path

        monkeypatch.setattr("nri_policy.cli.node.run.run", run)
        monkeypatch.setattr("nri_policy.cli.node.run.set_up", lambda _form: None)
        result = CliRunner().invoke(main, arguments, prog_name="nri-policy")
        self.code, self.error = result.exit_code, result.stderr


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("joined", [False, True])
def test_the_arguments_of_the_peers_daemonset_start_the_daemon(
    dashes: str,
    joined: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    given = {
        "host-root": str(tmp_path),
        "config-namespace": "telco",
        "pid-file": "/tmp/nri-resource-policy.pid",
        "nri-plugin-index": "07",
        "config-group-label": "example.com/group",
    }
    pairs = [(f"{dashes}{name}", value) for name, value in given.items()]
    words = ["=".join(each) for each in pairs] if joined else [part for p in pairs for part in p]
    started = Started(monkeypatch, *words)
    assert started.options is not None, started.error
    assert started.options.host_root == tmp_path
    assert started.options.config_namespace == "telco"
    assert started.options.identity == PluginIdentity(name="nri-policy", index="07")
    assert started.options.group_label == "example.com/group"
    (record,) = caplog.records
    assert (record.msg, record.__dict__["option"]) == ("option-without-effect", "--pid-file")


@pytest.mark.parametrize("option", ["--settings", "--config"])
def test_the_file_of_settings_has_two_names(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Started(monkeypatch, option, "/etc/policy.yaml").config == Path("/etc/policy.yaml")


def test_the_peers_file_of_settings_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, "--config-file", "/etc/policy.yaml", "--config-namespace", "x")
    assert started.options is not None
    assert (started.config, started.options.config_namespace) == (Path("/etc/policy.yaml"), "")


@pytest.mark.parametrize("option", ["--pid-files=x", "-pid-files=x", "--metrics-address"])
def test_an_option_that_neither_program_has_is_an_error(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, option)
    assert (started.options, started.code) == (None, 2)
    assert (
        f"nri-policy run: No such option '--{option.strip('-').partition('=')[0]}'" in started.error
    )


def test_an_address_of_probes_is_a_host_and_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    started = options(monkeypatch, "--probe-endpoint", ":8892")
    assert started is not None
    assert started.probe_endpoint == Address("", 8892)
    started = options(monkeypatch)
    assert started is not None
    assert started.probe_endpoint is None
    refused = Started(monkeypatch, "run", "--probe-endpoint", "8892")
    assert refused.code == 2
    assert "'8892' is not HOST:PORT, such as :8891" in refused.error
