"""`nri-policy run`: the daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.host_options import (
    FOLDER,
    PATH,
    host_root_option,
    kubeconfig_option,
    kubelet_dir_option,
    node_name_option,
    nri_socket_option,
    settings_path_option,
    state_dir_option,
)
from nri_policy.cli.node.peer_options import GoCommand, peer_options
from nri_policy.cli.node.tuner_options import tuner_socket_option
from nri_policy.daemon.daemon import IDENTITY
from nri_policy.daemon.paths import (
    CONTAINERS_DIR,
    CONTROL_SOCKET,
    SOCKET_VARIABLE,
    find_containers_dir,
)
from nri_policy.daemon.process import Options, run
from nri_policy.foundation.singleton import AlreadyRunningError
from nri_policy.foundation.wording import problem_of
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.kube.errors import KubeconfigError
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.observability.logs import Form, set_up
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Address, SettingsError, endpoint
from nri_policy.settings_sources.kubernetes import LABEL
from nri_policy.settings_sources.settings_file import SettingsFile
from nri_policy.store.errors import UnsafeStoreError

log = logging.getLogger(__name__)


def _endpoint(context: click.Context, option: click.Parameter, text: str) -> Address | None:
    try:
        return endpoint(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from error


@click.command(cls=GoCommand)
@settings_path_option("File with the settings, a TopologyAwarePolicy document.")
@host_root_option("Folder with the host's /sys and /proc.")
@nri_socket_option
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
@state_dir_option
@click.option(
    "--containers-dir",
    type=FOLDER,
    default=find_containers_dir,
    show_default=str(CONTAINERS_DIR),
    help="Folder for the files that tell containers their resources; in memory, for speed. In a"
    " pod, the host must have it at the same path.",
)
@click.option(
    "--control-socket",
    type=PATH,
    default=CONTROL_SOCKET,
    show_default=True,
    envvar=SOCKET_VARIABLE,
    help="Socket where the daemon answers the other commands.",
)
@tuner_socket_option
@kubelet_dir_option
@kubeconfig_option
@node_name_option
@click.option(
    "--config-namespace",
    default="kube-system",
    show_default=True,
    help="Namespace of the cluster's TopologyAwarePolicy objects, which override --settings."
    " Empty: no settings from the cluster.",
)
@click.option(
    "--config-group-label",
    default=LABEL,
    show_default=True,
    help="Node label whose value names the settings object, group.VALUE.",
)
@click.option(
    "--nrt-file",
    type=PATH,
    help="Also write the node's NodeResourceTopology object to this JSON file.",
)
@click.option(
    "--probe-endpoint",
    metavar="HOST:PORT",
    default="",
    callback=_endpoint,
    help="Answer /livez, /readyz and /healthz at this address as well, where scrapes of"
    " instrumentation.httpEndpoint cannot delay them.",
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
@peer_options
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
    tuner_socket: Path,
    kubelet_dir: Path,
    kubeconfig: Path | None,
    node_name: str,
    config_namespace: str,
    config_group_label: str,
    nrt_file: Path | None,
    probe_endpoint: Address | None,
    log_format: str,
    once_synchronized_exit: bool,
    config_file: Path | None,
    **without_effect: str | None,
) -> None:
    """Run the daemon, which places the runtime's containers.

    It runs until SIGTERM. If the runtime goes away, it waits and connects again. While no daemon
    runs, containers keep what they have. A daemon that the runtime has started, as its plugin, ends
    with the runtime.

    A first argument that is an option means `run`, and the options of nri-plugins' topology-aware
    policy are accepted, so its DaemonSet starts this daemon if only its image is changed.
    """
    try:
        identity = PluginIdentity(name=nri_plugin_name, index=nri_plugin_index)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    set_up(Form(log_format))
    for name in [name for name, value in without_effect.items() if value is not None]:
        log.info("option-without-effect", extra={"option": f"--{name.replace('_', '-')}"})
    if config_file is not None:
        config, config_namespace = config_file, ""
    options = Options(
        host_root=host_root,
        runtime=nri_socket if nri_plugin_socket is None else nri_plugin_socket,
        identity=identity,
        state_dir=state_dir.absolute(),
        containers_dir=containers_dir.absolute(),
        control_socket=control_socket,
        tuner_socket=tuner_socket,
        kubelet_dir=kubelet_dir.absolute(),
        kubeconfig=kubeconfig,
        node_name=node_name,
        config_namespace=config_namespace,
        group_label=config_group_label,
        nrt_file=nrt_file,
        probe_endpoint=probe_endpoint,
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
        raise Failure(problem_of(error)) from error
