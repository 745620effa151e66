"""Options of the commands that run on a node's host: the daemon, and the doctor beside it.

Imports nothing that these commands run, so that the daemon starts fast.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nri_policy.daemon.paths import CONFIG, KUBELET_DIR, NRI_SOCKET, STATE_DIR, find_state_dir

PATH = click.Path(path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def settings_path_option(what: str) -> _Option:
    """Return the option that names the settings, for a command that does *what* with them.

    `--config` is what most daemons call it, so units and manifests may have that.
    """
    names = ("--settings", "--config", "config")
    return click.option(*names, type=PATH, default=CONFIG, show_default=True, help=what)


def host_root_option(what: str) -> _Option:
    """Return the option that names the host's root, for a command that needs *what* of it."""
    return click.option(
        "--host-root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("/"),
        show_default=True,
        help=what,
    )


nri_socket_option = click.option(
    "--nri-socket",
    type=PATH,
    default=NRI_SOCKET,
    show_default=True,
    help="The runtime's socket for NRI plugins.",
)
state_dir_option = click.option(
    "--state-dir",
    type=FOLDER,
    default=find_state_dir,
    show_default=str(STATE_DIR),
    help="Folder for what has to survive a restart: the grants and the journal.",
)
kubelet_dir_option = click.option(
    "--kubelet-dir",
    type=FOLDER,
    default=KUBELET_DIR,
    show_default=True,
    help="The kubelet's folder, its --root-dir. In a pod, the host must have it at the same path.",
)
kubeconfig_option = click.option(
    "--kubeconfig",
    type=PATH,
    help="How to reach the cluster; in a pod, by its service account.",
)
node_name_option = click.option(
    "--node-name",
    envvar="NODE_NAME",
    default=lambda: platform.node().lower(),
    show_default="NODE_NAME, or the host's name",
    help="The node's name in the cluster.",
)
