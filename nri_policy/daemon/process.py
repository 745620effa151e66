"""The process of a daemon on its host: the source of settings, signals, probes, and the end.

Owns the order in which all parts start and stop, and that a failing part beside the daemon neither
stops it nor goes unnoticed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.daemon.rivals import Rivals
from nri_policy.daemon.tuner_link import check_hardware
from nri_policy.dra.claimed_devices import ClaimedDevices
from nri_policy.dra.slices import Slices
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.mounts import is_shared, mount_point
from nri_policy.foundation.singleton import succeed
from nri_policy.foundation.threads import started_pool
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.hotplug import Hotplug
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.events import EventRecorder
from nri_policy.kube.pod_reader import PodReader
from nri_policy.kubelet.device_counts import DeviceCounts
from nri_policy.kubelet.pod_objects import PodObjects
from nri_policy.kubelet.pod_resources import Assignments, pod_resources_socket
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.nrt.publisher import Sink
from nri_policy.nrt.topology_file import TopologyFile
from nri_policy.observability.logs import Debug, write_repeats
from nri_policy.observability.service_manager import ServiceManager
from nri_policy.plugin.exposure import DESTINATION, FILE
from nri_policy.plugin.host_equipment import HostEquipment
from nri_policy.plugin.sources import Sources
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Address, ReloadResult, Settings, SettingsError
from nri_policy.settings_sources.cluster_settings import ClusterSettingsSource
from nri_policy.settings_sources.kubernetes import Kubernetes
from nri_policy.settings_sources.settings_file import SettingsFile, watch
from nri_policy.tuning.protocol import ask

log = logging.getLogger(__name__)

LOCK = ".lock"  # no container's id
THREADS = 8  # that read and write files
AGAIN = 5.0  # seconds until what failed beside the daemon is started again


class Options(Struct, frozen=True, kw_only=True):
    """Where the daemon finds and leaves things."""

    host_root: Path
    runtime: Path | int  # its NRI socket, or the descriptor of an open one
    identity: PluginIdentity
    state_dir: Path
    containers_dir: Path  # what containers are shown of their resources
    kubelet_dir: Path
    control_socket: Path
    tuner_socket: Path
    kubeconfig: Path | None
    node_name: str
    config_namespace: str  # of the cluster's TopologyAwarePolicy objects; empty: not followed
    group_label: str  # of the Node, that names its group
    nrt_file: Path | None
    probe_endpoint: Address | None
    once_synchronized_exit: bool


async def run(file: SettingsFile, options: Options) -> None:
    """Serve until SIGTERM or SIGINT, with the settings in *file*, or those of the cluster.

    They are read again when they change, and at SIGHUP.

    Raises SettingsError, TopologyError or CapacityError if the settings or the machine allow no
    start, AlreadyRunningError if another daemon holds one of the folders, KubeconfigError if a
    named one is unusable, OSError for folders, files, sockets and threads. A reload that fails
    changes nothing, and is logged.
    """
    # with threads of its own that start on demand, work would fail where none can be started
    asyncio.get_running_loop().set_default_executor(started_pool(THREADS))
    gc.freeze()  # modules live as long as the daemon, so collections can skip them
    manager = ServiceManager()
    ended, reload = asyncio.Event(), asyncio.Event()
    # SIGHUP may arrive before the settings are read for the first time
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    connect = access(options.kubeconfig)
    following = connect is not None and options.config_namespace != ""
    settings = None if following else file.load()  # before anything is created
    options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    options.containers_dir.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        await succeed((options.state_dir / "lock", options.containers_dir / LOCK), stack)
        source: ClusterSettingsSource | SettingsFile = file
        client = None if connect is None else Client(connect)
        if client is not None:
            stack.push_async_callback(client.close)
        if client is not None and following:
            followed = _cluster_settings(file, client, options, reload.set)
            source = await stack.enter_async_context(followed)
        events = None if client is None else EventRecorder(client, options.node_name)
        async with _report_first_settings(source):
            settings = settings or source.load()
            equipment = await asyncio.to_thread(HostEquipment, options.host_root)
            rivals = Rivals(options.host_root)
            stack.callback(rivals.release)
            parts = _daemon(
                options,
                settings,
                source,
                client=client,
                events=events,
                equipment=equipment,
                rivals=rivals,
            )
            daemon = await stack.enter_async_context(parts)
        await stack.enter_async_context(_follow(daemon, settings, options.probe_endpoint))
        stack.push_async_callback(daemon.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _end, number, ended)
        beside: dict[str, Callable[[], Awaitable[None]]] = {
            "reload": partial(_reload_at, reload, daemon, manager),
            "settings": partial(watch, file, reload.set, SYSTEM_CLOCK),
            **tasks_of(daemon),
            "watchdog": partial(_beat, daemon, manager),
            "hotplug": partial(_follow_hardware, daemon, options),
            "disks": partial(equipment.run, daemon.events.equip),
            "rivals": rivals.watch,
        }
        if events is not None:
            beside["events"] = events.run
        gc.collect()
        gc.freeze()  # so does what exists now
        async with (
            _publishing(daemon, client, options),
            daemon.listening(options.control_socket),
            daemon.serving(options.runtime) as serving,
        ):
            async with running(beside):
                until = daemon.synchronized if options.once_synchronized_exit else ended
                ending = {asyncio.create_task(event.wait()) for event in {until, ended}}
                await asyncio.wait({serving, *ending}, return_when=asyncio.FIRST_COMPLETED)
                for task in ending:
                    task.cancel()
                manager.notify_stopping()
            if serving.done():
                serving.result()
            elif ended.is_set():
                await daemon.leave()
    log.info("ended")


def tasks_of(daemon: Daemon) -> dict[str, Callable[[], Coroutine[None, None, None]]]:
    """Return what a daemon runs beside its session, by name; its host's process has more."""
    return {
        "deadlines": daemon.meet_deadlines,
        "store": daemon.keep_stored,
        "audit": daemon.auditor.run,
        "parents": daemon.parents.run,
        "first looks": daemon.auditor.watch_starts,
        "CPU use": daemon.cpu_use.run,
        "readiness": daemon.readiness.run,
        "claim driver": daemon.claim_driver.run,
        "pod explanations": daemon.pod_explanations.run,
        "tuner": daemon.tuner_link.run,
    }


def _end(number: signal.Signals, ended: asyncio.Event) -> None:
    """End in order at the first signal, and at once at the second: all commits are stored."""
    if ended.is_set():
        log.warning("ended", extra={"reason": f"{number.name} came a second time"})
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    ended.set()


@asynccontextmanager
async def running(parts: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Keep all *parts* up, by their names, for the duration of a `with`; then end them."""
    tasks = [asyncio.create_task(keep_up(*each), name=each[0]) for each in parts.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def keep_up(
    name: str,
    part: Callable[[], Awaitable[None]],
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Run a part that runs as long as the daemon does; start it again after it failed."""
    while True:
        try:
            await part()
        except Exception:
            log.exception("failed", extra={"part": name, "again_in": f"{AGAIN:.0f}s"})
        else:
            return
        await clock.sleep(AGAIN)


@asynccontextmanager
async def _daemon(  # noqa: PLR0913 - keywords: what it has around it
    options: Options,
    settings: Settings,
    source: ClusterSettingsSource | SettingsFile,
    *,
    client: Client | None,
    events: EventRecorder | None,
    equipment: HostEquipment,
    rivals: Rivals,
) -> AsyncIterator[Daemon]:
    """Make the daemon, with all that it asks about the host, on the hardware as it is now."""
    machine = discover(options.host_root, memory_kinds=settings.memory_kinds)
    for note in check_hardware(settings, options.host_root, machine):
        log.warning("settings", extra={"note": note})
    containers_on_host = is_shared(options.containers_dir, options.host_root)
    notes = [*_missing_mounts(options, containers_on_host=containers_on_host)]
    for note in notes:
        log.warning("mount-missing", extra={"note": note})
    async with AsyncExitStack() as stack:
        assignments = await stack.enter_async_context(
            Assignments(pod_resources_socket(options.kubelet_dir))
        )
        device_counts = DeviceCounts(assignments)
        slices, claims, objects = None, None, None
        if client is not None:
            pods = PodReader(client)
            slices = Slices(client, options.node_name)
            claims = ClaimedDevices(client, pods, slices, assignments.has_claims)
            stack.push_async_callback(claims.close)
            objects = PodObjects(pods)
            stack.push_async_callback(objects.close)
        host = Environment(
            state_dir=options.state_dir,
            containers_dir=options.containers_dir,
            containers_on_host=containers_on_host,
            root=options.host_root,
            load=source.load,
            report=source.report if isinstance(source, ClusterSettingsSource) else (lambda _: None),
            record=(lambda _: None) if events is None else events.record,
            identity=options.identity,
            notes=tuple(notes),
            node_name=options.node_name,
            client=client,
            rivals=rivals,
            devices=device_counts.count,
            unused=device_counts.count_free,
            kubelet_dir=options.kubelet_dir,
            manages_cpus=assignments.manages_cpus,
            ask_tuner=partial(ask, options.tuner_socket),
            groups_changed=equipment.look_soon,
            sources=Sources(
                locator=Locator(options.host_root, machine),
                assignments=assignments,
                claims=claims,
                objects=objects,
                equipment=lambda: equipment.latest,
            ),
        )
        daemon = Daemon(machine, settings, host)
        if objects is not None:
            objects.late = daemon.events.describe

        def asked() -> bool:
            return daemon.node.view.layout.settings.agent.pod_resource_api

        counting = device_counts.running(daemon.topology.feed.changed, wanted=asked)
        await stack.enter_async_context(counting)
        if slices is not None:
            await stack.enter_async_context(running({"slices": partial(slices.run, asked)}))
        daemon.status.announce()
        yield daemon


def _missing_mounts(options: Options, *, containers_on_host: bool) -> Iterator[str]:
    """Yield the host folders that are not mounted in our container, with the consequences."""
    if not containers_on_host:
        yield (
            f"containers do not see their resources in {DESTINATION}/{FILE}: the host does not have"
            f" {options.containers_dir} at the same path; mount it, or give --containers-dir"
        )
    unmounted = mount_point(options.state_dir) == Path("/")
    if unmounted and not is_shared(options.state_dir, options.host_root):
        yield (
            f"the state ends with this container: the host does not have {options.state_dir};"
            " mount it, or give --state-dir"
        )


@asynccontextmanager
async def _follow(
    daemon: Daemon, settings: Settings, probes: Address | None
) -> AsyncIterator[None]:
    """Have probes, metrics and log levels follow the settings in force.

    Probes are answered at *probes* as well, from the start to the end.
    """
    debug, endpoint = Debug(), daemon.endpoint()

    @asynccontextmanager
    async def follow(settings: Settings) -> AsyncIterator[None]:
        async with endpoint.following(settings.instrumentation):
            yield
        debug.switch(settings.log.debug)

    try:
        async with endpoint.probed(probes):
            async with follow(settings):
                daemon.reloads.follow = follow
            yield
    finally:
        await endpoint.close()


async def _beat(daemon: Daemon, manager: ServiceManager) -> None:
    """Report regularly that the daemon is alive."""

    def beat() -> None:
        manager.beat(ready=daemon.synchronized.is_set(), status=daemon.status.line())
        write_repeats()

    await daemon.watchdog.beat(beat, manager.max_interval)


async def _follow_hardware(daemon: Daemon, options: Options) -> None:
    """Notify the daemon of hardware changes."""

    def read() -> Machine:
        kinds = daemon.node.view.layout.settings.memory_kinds
        return discover(options.host_root, memory_kinds=kinds)

    async def replace_machine(old: Machine, new: Machine) -> None:
        # settings may have changed how the machine is seen since *new* was read
        await daemon.events.reconfigure(machine=new, instead_of=old)

    await Hotplug(options.host_root, read).run(
        lambda: daemon.node.view.layout.machine, replace_machine
    )


@asynccontextmanager
async def _cluster_settings(
    file: SettingsFile,
    client: Client,
    options: Options,
    changed: Callable[[], None],
) -> AsyncIterator[ClusterSettingsSource]:
    """Follow the settings that the cluster has for this node."""
    settings = ClusterSettingsSource(
        Kubernetes(client, options.config_namespace, options.group_label),
        options.node_name,
        kept=options.state_dir / "settings.json",
        otherwise=file.load,
        changed=changed,
    )
    following = asyncio.create_task(
        keep_up("cluster-settings", settings.run), name="cluster settings"
    )
    try:
        await settings.wait_answered()
        yield settings
    finally:
        following.cancel()
        await asyncio.wait({following})


@asynccontextmanager
async def _report_first_settings(
    source: ClusterSettingsSource | SettingsFile,
) -> AsyncIterator[None]:
    """Report the result of the first settings to the cluster, if they are from there."""
    if not isinstance(source, ClusterSettingsSource):
        yield
        return
    outcome = ReloadResult(accepted=True, origin="", reason="", time=time.time())
    try:
        yield
    except (SettingsError, CapacityError) as error:
        source.report(replace(outcome, accepted=False, reason=str(error)))
        await source.wait_written()
        raise
    source.report(outcome)


@asynccontextmanager
async def _publishing(
    daemon: Daemon, client: Client | None, options: Options
) -> AsyncIterator[None]:
    """Publish the node's topology to the sinks in *options*, and to the cluster if it is known."""
    sinks: list[Sink] = [] if options.nrt_file is None else [TopologyFile(options.nrt_file)]
    if client is None:
        log.info(
            "nrt-not-published", extra={"reason": "no cluster: neither in a pod nor --kubeconfig"}
        )
    else:
        sinks.append(ClusterSink(client, options.node_name))
    async with daemon.topology.publishing(sinks):
        yield


async def _reload_at(reload: asyncio.Event, daemon: Daemon, manager: ServiceManager) -> None:
    """Take new settings whenever *reload* is set."""
    while await reload.wait():
        reload.clear()
        manager.notify_reloading()
        try:
            await daemon.reloads.reload()
        except Exception:
            log.exception("failed", extra={"method": "reload"})
        manager.notify_reloaded()
