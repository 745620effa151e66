"""`nri-policy run`: the daemon."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path

import click

from nri_policy.cli.asking import DEFAULT_SOCKET, SOCKET_VARIABLE
from nri_policy.cli.failure import Exit, Failure
from nri_policy.daemon.build import IDENTITY
from nri_policy.daemon.process import Options, run
from nri_policy.foundation.singleton import AlreadyRunningError
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.kube.errors import KubeconfigError
from nri_policy.nri.plugin import Identity
from nri_policy.observability.logs import Form, set_up
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import SettingsError
from nri_policy.settings.sources.file import SettingsFile
from nri_policy.store.errors import UnsafeStoreError

_PATH = click.Path(path_type=Path)


@click.command
@click.option(
    "--config",
    type=_PATH,
    default=Path("/etc/nri-policy/config.yaml"),
    show_default=True,
    help="File with the settings, a TopologyAwarePolicy document.",
)
@click.option(
    "--host-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Folder with the host's /sys and /proc.",
)
@click.option(
    "--nri-socket",
    type=_PATH,
    default=Path("/var/run/nri/nri.sock"),
    show_default=True,
    help="The runtime's socket for NRI plugins.",
)
@click.option(
    "--nri-plugin-name",
    default=IDENTITY.name,
    show_default=True,
    envvar="NRI_PLUGIN_NAME",
    help="Name under which the daemon registers with the runtime.",
)
@click.option(
    "--nri-plugin-index",
    default=IDENTITY.index,
    show_default=True,
    envvar="NRI_PLUGIN_IDX",
    help="Two digits: the runtime calls plugins in the order of their indexes.",
)
@click.option(
    "--nri-plugin-socket",
    type=click.IntRange(min=3),
    envvar="NRI_PLUGIN_SOCKET",
    help="File descriptor of a connection that the runtime has opened; replaces --nri-socket.",
)
@click.option(
    "--state-dir",
    type=_PATH,
    default=Path("/var/lib/nri-policy"),
    show_default=True,
    help="Folder for what has to survive a restart: the grants and the journal.",
)
@click.option(
    "--containers-dir",
    type=_PATH,
    default=Path("/run/nri-policy/containers"),
    show_default=True,
    help="Folder for the files that tell containers their resources; in memory, for speed.",
)
@click.option(
    "--control-socket",
    type=_PATH,
    default=DEFAULT_SOCKET,
    show_default=True,
    envvar=SOCKET_VARIABLE,
    help="Socket where the daemon answers the other commands.",
)
@click.option(
    "--kubeconfig",
    type=_PATH,
    help="How to reach the cluster; in a pod, by its service account.",
)
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    default=lambda: platform.node().lower(),
    show_default="NODE_NAME, or the host's name",
    help="The node's name in the cluster.",
)
@click.option(
    "--config-namespace",
    default="kube-system",
    show_default=True,
    help="Namespace of the cluster's TopologyAwarePolicy objects, which override --config."
    " Empty: no settings from the cluster.",
)
@click.option(
    "--nrt-file",
    type=_PATH,
    help="Also write the node's NodeResourceTopology object to this JSON file.",
)
@click.option(
    "--log-format",
    type=click.Choice([form.value for form in Form]),
    default=Form.TEXT.value,
    show_default=True,
    help="Format of the log on stderr: key=value, or JSON.",
)
@click.option(
    "--once-synchronized-exit",
    is_flag=True,
    help="Exit after the first synchronisation with the runtime.",
)
def command(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    config: Path,
    host_root: Path,
    nri_socket: Path,
    nri_plugin_name: str,
    nri_plugin_index: str,
    nri_plugin_socket: int | None,
    state_dir: Path,
    containers_dir: Path,
    control_socket: Path,
    kubeconfig: Path | None,
    node_name: str,
    config_namespace: str,
    nrt_file: Path | None,
    log_format: str,
    once_synchronized_exit: bool,
) -> None:
    """Run the daemon, which places the runtime's containers.

    It runs until SIGTERM. If the runtime goes away, it waits and connects again. While no daemon
    runs, containers keep what they have. A daemon that the runtime has started, as its plugin, ends
    with the runtime.
    """
    try:
        identity = Identity(name=nri_plugin_name, index=nri_plugin_index)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    set_up(Form(log_format))
    options = Options(
        host_root=host_root,
        runtime=nri_socket if nri_plugin_socket is None else nri_plugin_socket,
        identity=identity,
        state_dir=state_dir.absolute(),
        containers_dir=containers_dir.absolute(),
        control_socket=control_socket,
        kubeconfig=kubeconfig,
        node_name=node_name,
        config_namespace=config_namespace,
        nrt_file=nrt_file,
        once_synchronized_exit=once_synchronized_exit,
    )
    try:
        asyncio.run(run(SettingsFile(config), options))
    except SettingsError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    except CapacityError as error:
        raise Failure(f"{config}: {error}", Exit.SETTINGS) from error
    except (
        TopologyError,
        AlreadyRunningError,
        UnsafeStoreError,
        KubeconfigError,
        OSError,
    ) as error:
        raise Failure(str(error)) from error
