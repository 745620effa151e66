"""The script that enables NRI in containerd 1.7: on made-up configurations only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nri_policy.doctor.host import Host
from nri_policy.doctor.runtime_config import CONTAINERD, runtime_configs

SCRIPT = Path(__file__).parents[2] / "configs/kustomize/containerd-1.7/enable-nri.sh"
SECTION = '[plugins."io.containerd.nri.v1.nri"]'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / CONTAINERD.removeprefix("/")
    path.parent.mkdir(parents=True)
    return path


def enable(config: Path) -> tuple[int, bool, str]:
    """Run the script; return its code, whether it would have restarted containerd, its messages."""
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env={
            "PATH": "/usr/bin:/bin",
            "CONTAINERD_CONFIG": str(config),
            "CONTAINERD_RESTART": "echo R",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout == "R\n", done.stderr


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        "version = 2\n",
        "version = 2\nimports = []\n[plugins.x]\n  disable = true",
        f"version = 2\n{SECTION}\n",
        f'version = 2\n  {SECTION}\n    disable = true\n    plugin_path = "/p"\n[plugins.x]\n',
        f"version = 2\n{SECTION.replace(chr(34), chr(39))}\ndisable = true\n",
        f'version = 2\n{SECTION}\nplugin_path = "/p"\n[plugins.x]\n  disable = true\n',
    ],
)
def test_nri_is_on_afterwards_and_nothing_else_has_changed(
    config: Path, before: str | None
) -> None:
    if before is not None:
        config.write_text(before)
    assert enable(config)[:2] == (0, True)
    (read,) = runtime_configs(Host(config.parents[2]), ())
    assert (read.broken, read.nri) == ((), True)
    assert read.plugin_folder == ("/p" if before and "/p" in before else "/opt/nri/plugins")
    if before and "[plugins.x]" in before:
        assert (
            config.read_text()
            .partition("[plugins.x]")[2]
            .startswith(before.partition("[plugins.x]")[2])
        )
    kept = config.with_name("config.toml.before-nri-policy")
    assert (kept.read_text() if kept.exists() else None) == before
    assert enable(config)[:2] == (0, False)


@pytest.mark.parametrize(
    "before", ["version = 3\n", f"version = 2\n{SECTION}\n  disable = false\n"]
)
def test_what_is_on_is_left_alone(config: Path, before: str) -> None:
    config.write_text(before)
    assert enable(config)[:2] == (0, False)
    assert config.read_text() == before
    assert [each.name for each in config.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("[grpc]\n", "is of version 1"),
        ('version = 2\ndisabled_plugins = ["io.containerd.nri.v1.nri"]\n', "names NRI"),
    ],
)
def test_what_it_cannot_enable_is_said_and_left_alone(
    config: Path, before: str, message: str
) -> None:
    config.write_text(before)
    code, restarted, said = enable(config)
    assert (code, restarted, message in said, config.read_text()) == (1, False, True, before)
