"""Options that name a cluster: its files, a synthetic cluster, or a live one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

import click
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cli.cluster.run import read_cluster_settings
from nri_policy.cli.cluster.service import ServiceClient, service_options
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import name_of
from nri_policy.cluster.cluster_files import ClusterFiles, read_documents
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.device_claims import DeviceClaims
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.objects.settings import ClusterSettings, read_levels, read_settings
from nri_policy.cluster.offline import engine_of, find_pods_elsewhere
from nri_policy.cluster.planning.preview import find_group, pick_group
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.service.listing import list_cluster
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.cluster.workloads.workload import (
    add_claims,
    add_priority_classes,
    describe_left_out_kinds,
    each_object,
    is_left_out,
    read_groups,
)
from nri_policy.cluster.zones.numa_node import find_unknown_policy
from nri_policy.foundation.garbage import collection_paused
from nri_policy.foundation.wording import counted, did_you_mean, one_line, quoted, some
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access, describe
from nri_policy.kube.errors import APIError, KubeconfigError

MAX_SIZE = 2 << 30  # bytes of a file; 200,000 pods as kubectl prints them take half of it
_CHUNK = 1 << 20
_DEFAULTS = (
    "note: the cluster has no ClusterPlacement object, so that the defaults count; name the"
    " service's file, if it has one: --settings FILE (place, explain, plan also have --service)"
)

Object = dict[str, Any]

_Command = Callable[..., Any]
FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)

documents_option = click.option(
    "-f",
    "--filename",
    "asked",
    type=FILE,
    multiple=True,
    help="Pods, Jobs, JobSets, LeaderWorkerSets, Deployments, StatefulSets, ReplicaSets or"
    " PlacementGroups; - for stdin.",
)


class ClusterSource(Struct, frozen=True):
    """Where to read a cluster from."""

    files: tuple[Path, ...]
    synthetic: str | None
    settings: Path | None
    kubeconfig: Path | None
    levels: list[str] | None = None  # of the first topology, instead of the settings'
    service: ServiceClient | None = None  # that is asked for its settings

    @property
    def is_given(self) -> bool:
        """Whether an option names a cluster or settings."""
        given = (self.files, self.synthetic, self.settings, self.kubeconfig, self.levels)
        return any(given)

    def load(
        self, *, budgets: bool = False, devices: bool = False
    ) -> tuple[Engine, ClusterSnapshot]:
        """Return an engine that knows the cluster, see `read`."""
        snapshot, settings = self.read(budgets=budgets, devices=devices)
        with document_errors(), collection_paused():
            return engine_of(snapshot, settings), snapshot

    def read(
        self,
        *,
        nodes: bool = True,
        groups: bool = True,
        budgets: bool = False,
        devices: bool = False,
    ) -> tuple[ClusterSnapshot, ClusterSettings]:
        """Return the cluster and its settings; raises Failure or UsageError.

        Where *groups* do not matter, a live one may forbid to read them. It is asked for
        PodDisruptionBudgets, and for claims and their *devices*, only where they matter. Files
        without a node are an error where *nodes* matter.
        """
        if self.synthetic is not None and self.files:
            raise click.UsageError("only one of --cluster and --synthetic")
        given = ClusterFiles()
        with document_errors(), collection_paused():
            if self.synthetic is not None:
                made = synthetic.make_cluster(self.synthetic)
                given = ClusterFiles(cluster=made.cluster, settings=made.settings)
            elif not self.files:
                given = self._ask(groups=groups, budgets=budgets, devices=devices)
            for path in self.files:
                given.add(text_of(path), name_of(path))
            try:
                snapshot = read_snapshot(given.cluster)
            except DocumentError as error:
                names = ", ".join(map(name_of, self.files))
                raise DocumentError(names, str(error)) from None
            if nodes:
                self._check(given, snapshot)
            if groups and nodes and self._lacks_settings(given):
                click.echo(_DEFAULTS, err=True)
            if self.service is not None:
                settings = self.service.ask("settings", {}, ClusterSettings)
            elif self.settings is not None:
                settings = read_cluster_settings(self.settings)
            else:
                settings = read_settings(given.settings)
            return snapshot, self._with_levels(settings)

    def _lacks_settings(self, given: ClusterFiles) -> bool:
        """Whether a live cluster is asked that has no settings, and none are given."""
        named = (self.files, self.synthetic, self.settings, self.levels, self.service)
        return not any(named) and not given.settings

    def _check(self, given: ClusterFiles, snapshot: ClusterSnapshot) -> None:
        """Note on stderr what does not count; raises Failure for files without a node."""
        notes = [*_unknown_labels(self.levels or (), snapshot)]
        if self.files:
            if not snapshot.nodes:
                names = ", ".join(map(name_of, self.files))
                raise Failure(f"no Node in {names} (it has: {given.contents})", Exit.USAGE)
            notes = [*_not_counted(given, snapshot), *notes]
        for note in notes:
            click.echo(note, err=True)

    def _with_levels(self, settings: ClusterSettings) -> ClusterSettings:
        """Return *settings* with the levels that an option names."""
        if self.levels is None:
            return settings
        first, *others = settings.topologies
        below = first.below_host if self.levels[-1] == HOSTNAME else []
        first = replace(first, levels=self.levels, below_host=below)
        return replace(settings, topologies=[first, *others])

    def _ask(self, *, groups: bool, budgets: bool, devices: bool) -> ClusterFiles:
        """Return what the live cluster has now."""
        kubeconfig = self.kubeconfig or usual_kubeconfig()
        try:
            connect = access(kubeconfig)
            if connect is None:
                named = os.environ.get("KUBECONFIG")
                lacking = "KUBECONFIG names no file" if named else "there is no ~/.kube/config"
                raise click.UsageError(
                    f"no cluster is named, and {lacking}: give --cluster, --synthetic or"
                    " --kubeconfig"
                )
            client = Client(connect)
            return asyncio.run(_list(client, groups=groups, budgets=budgets, devices=devices))
        except KubeconfigError as error:
            raise Failure(str(error), Exit.USAGE) from error
        except APIError as error:
            server = describe(kubeconfig) if kubeconfig else "the cluster"
            raise Failure(f"{server}: {error}", Exit.UNREACHABLE) from error


def _not_counted(given: ClusterFiles, snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yield what in the files of a cluster does not count, and why."""
    names = {each.name for each in snapshot.nodes}
    lost = sum(bool(each.node) and each.node not in names for each in snapshot.pods)
    if lost:
        yield f"note: {counted(lost, 'pod')} on nodes that are not in the files"
    if strays := find_pods_elsewhere(snapshot):
        stray = some(each.full_name for each in strays)
        yield f"note: pods outside their groups' places count where they run: {stray}"
    lost = sum(each.node not in names for each in snapshot.zones)
    if lost:
        yield f"note: {counted(lost, 'NodeResourceTopology object')} without a node in the files"
    for each in snapshot.zones:
        if policy := find_unknown_policy(each):
            yield one_line(f"note: topologyManagerPolicy {quoted(policy)} is unknown ({each.node})")
            break  # one example suffices
    if wrong := next((each for each in snapshot.zones if each.too_free), None):
        what = f"{wrong.too_free} ({wrong.node})"
        yield one_line(f"note: more is available than allocatable: {what}")
    if given.ignored:
        kinds = ", ".join(f"{number} {kind}" for kind, number in given.ignored.items())
        yield one_line(f"note: not read: {kinds}")


def _unknown_labels(levels: Iterable[str], snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yield which of the *levels* are labels of no node, and which labels are near."""
    for label in levels:
        if label != HOSTNAME and not any(label in node.labels for node in snapshot.nodes):
            labels = {HOSTNAME, *(each for node in snapshot.nodes for each in node.labels)}
            hint = did_you_mean(label, labels) or f"; there are: {some(labels)}"
            yield f"note: no node has the label {quoted(label)}{one_line(hint)}"


def usual_kubeconfig() -> Path | None:
    """Return the kubeconfig that kubectl finds by itself: in KUBECONFIG, else at home."""
    named = os.environ.get("KUBECONFIG")
    home = [Path.home() / ".kube" / "config"]
    paths = map(Path, filter(None, named.split(os.pathsep))) if named else home
    return next((path for path in paths if path.is_file()), None)


async def _list(client: Client, *, groups: bool, budgets: bool, devices: bool) -> ClusterFiles:
    try:
        return await list_cluster(client, groups=groups, budgets=budgets, devices=devices)
    finally:
        await client.close()


def _read_levels(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> list[str] | None:
    try:
        return None if text is None else read_levels(text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def snapshot_options(command: _Command) -> _Command:
    """Give *command* the options that name a cluster; it gets them as `source`."""

    @click.option(
        "--cluster",
        "files",
        metavar="FILE",
        type=FILE,
        multiple=True,
        help="Output of `kubectl get nodes,pods,noderesourcetopologies,placementgroups -A -o json`;"
        " - for stdin.",
    )
    @click.option(
        "--synthetic",
        "made",
        metavar="SPEC",
        help='A cluster that does not exist, such as "zone:2 rack:4 host:16 cpu:64 memory:256Gi'
        ' numa:2".',
    )
    @click.option(
        "--settings",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A ClusterPlacement document.",
    )
    @click.option(
        "--kubeconfig",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="How to reach a live cluster, if no file is given.  [default: as kubectl finds it; in"
        " a pod, its service account]",
    )
    @wraps(command)
    def with_source(
        *args: Any,
        files: tuple[Path, ...],
        made: str | None,
        settings: Path | None,
        kubeconfig: Path | None,
        **named: Any,
    ) -> Any:
        source = ClusterSource(files, made, settings, kubeconfig)
        return command(*args, source=source, **named)

    return with_source


def cluster_options(command: _Command) -> _Command:
    """Give *command* the options that name a cluster and its levels, as `source`."""

    @snapshot_options
    @click.option(
        "--levels",
        metavar="LABEL,…",
        callback=_read_levels,
        help="Labels of nodes, coarse to fine: the levels of the first topology, instead of those"
        " of the settings.",
    )
    @wraps(command)
    def with_levels(
        *args: Any, source: ClusterSource, levels: list[str] | None, **named: Any
    ) -> Any:
        return command(*args, source=replace(source, levels=levels), **named)

    return with_levels


def service_option(command: _Command) -> _Command:
    """Give *command*, which has a `source` and a `form`, the service that is asked instead."""

    @service_options
    @wraps(command)
    def with_service(  # noqa: PLR0913 - click names them; one for each option
        *args: Any,
        source: ClusterSource,
        form: str,
        service: str | None,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        **named: Any,
    ) -> Any:
        if service is not None and source.is_given:
            raise click.UsageError(
                "--service takes no cluster and no settings: the service has its own"
            )
        if service is not None and form in ("svg", "html"):
            raise click.UsageError("the service draws no pictures: -o table, json or yaml")
        asked = None if service is None else ServiceClient(service, ca, cert, key)
        return command(*args, source=source, form=form, service=asked, **named)

    return with_service


def service_settings_option(command: _Command) -> _Command:
    """Give *command*, which has a `source`, the service whose settings count there."""

    @partial(service_options, use="Use the settings of the running service at https://HOST:8443.")
    @wraps(command)
    def with_settings(
        *args: Any,
        source: ClusterSource,
        service: str | None,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        **named: Any,
    ) -> Any:
        if service is None:
            return command(*args, source=source, **named)
        if source.settings is not None or source.synthetic is not None:
            raise click.UsageError("only one of --service, --settings and --synthetic")
        asked = replace(source, service=ServiceClient(service, ca, cert, key))
        return command(*args, source=asked, **named)

    return with_settings


@contextmanager
def document_errors(file: str = "") -> Iterator[None]:
    """Make a DocumentError within the context the program's: one line, with its *file* and path."""
    try:
        yield
    except DocumentError as error:
        raise Failure(f"{file}: {error}" if file else str(error), Exit.USAGE) from error
    except RecursionError:
        raise Failure("a document is nested too deep", Exit.USAGE) from None


def exit_code(*, fits: bool, malformed: bool) -> int:
    """Return the exit code of what was asked about groups; *malformed*: of a wrong request."""
    if malformed:
        return Exit.USAGE
    return 0 if fits else Exit.NO


def text_of(path: Path) -> memoryview:
    """Return what a file, or the standard input (`-`), holds.

    A file is mapped: its text is not copied, and takes memory only as long as there is enough. If
    another program cuts it off meanwhile, SIGBUS ends this one. Raises Failure, also where the text
    has no end.
    """
    if str(path) == "-" and sys.stdin.closed:
        raise click.UsageError("the standard input can be read once: give one - only")
    try:
        if str(path) == "-":
            with sys.stdin.buffer as file:
                return _read(file, path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:  # a pipe, a device, or nothing
                return _read(file, path)
            _check_size(size, path)
            return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
    except OSError as error:
        raise Failure(f"{name_of(path)}: {error.strerror}", Exit.USAGE) from error


def _read(file: BinaryIO, path: Path) -> memoryview:
    """Return what there is to read; raises Failure where that has no end."""
    text = bytearray()
    while chunk := file.read(_CHUNK):
        text += chunk
        if b"\0" in chunk:
            raise Failure(f"{name_of(path)}: it is not text", Exit.USAGE)
        _check_size(len(text), path)
    return memoryview(text)


def _check_size(size: int, path: Path) -> None:
    if size > MAX_SIZE:
        raise Failure(f"{name_of(path)}: it is longer than {MAX_SIZE} bytes", Exit.USAGE)


def documents_of(paths: Iterable[Path]) -> list[Object]:
    """Return the objects in files; raises Failure."""
    with document_errors():
        return [each for path in paths for each in read_documents(text_of(path), name_of(path))]


def groups_of(
    paths: Iterable[Path], classes: PriorityClasses, devices: DeviceClaims | None = None
) -> list[PlacementGroup]:
    """Return the groups in files; raises Failure, which names the file.

    Adds PriorityClasses in the files to *classes*, which give priorities, and resource claims to
    *devices*.
    """
    files = [(name_of(path), documents_of([path])) for path in paths]
    groups = list[PlacementGroup]()
    for name, documents in files:
        with document_errors(name):
            add_priority_classes(documents, classes)
            if devices is not None:
                add_claims(documents, devices)
    for name, documents in files:
        with document_errors(name):
            groups += read_groups(documents, classes)
    _require(groups, paths, [each for _, documents in files for each in documents])
    return groups


def objects_of(paths: Iterable[Path]) -> list[Object]:
    """Return the objects in files, of which some are to be placed; raises Failure."""
    documents = documents_of(paths)
    with document_errors():
        found = [value for value, _ in each_object(documents) if not is_left_out(value)]
    _require(found, paths, documents)
    return documents


def require_one(name: str | None, asked: tuple[Path, ...]) -> None:
    """Raise UsageError unless a group is named: one of the cluster, or in files."""
    if name is None and not asked:
        raise click.UsageError("name one group: NAME of one in the cluster, or -f FILE")


def the_group(
    engine: Engine,
    name: str | None,
    asked: tuple[Path, ...],
    classes: PriorityClasses,
    devices: DeviceClaims | None = None,
) -> PlacementGroup:
    """Return the group of that name: one in the files, if any, else one that *engine* knows.

    Without a name, it is the only one in the files. Raises Failure and DocumentError.
    """
    if asked or name is None:
        return group_of(asked, name, classes, devices)
    try:
        return find_group(engine.state.groups, name)
    except DocumentError as error:
        raise DocumentError("", f"{error} (pods in a file: -f FILE)") from None


def group_of(
    asked: tuple[Path, ...],
    name: str | None,
    classes: PriorityClasses,
    devices: DeviceClaims | None = None,
) -> PlacementGroup:
    """Return the group of that name in files, or the only one; raises Failure and DocumentError."""
    where = ", ".join(map(name_of, asked))
    return pick_group(groups_of(asked, classes, devices), name, where)


def _require(found: Sequence[object], paths: Iterable[Path], documents: list[Object]) -> None:
    """Raise Failure if nothing was *found* in files to place; else note what is left out."""
    text = describe_left_out_kinds(documents)
    if not found:
        names = ", ".join(map(name_of, paths))
        problem = f"there is no object to place in it{text and f': {text}'}"
        raise Failure(f"{names}: {problem}", Exit.USAGE)
    if text:
        note_left_out(text)


def note_left_out(text: str) -> None:
    """Note on stderr the kinds of objects that are not placed."""
    click.echo(f"note: left out, as they are not placed: {text}", err=True)
