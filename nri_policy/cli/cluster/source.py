"""Options that name a cluster: its files, a synthetic cluster, or a live one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cli.cluster.documents import FILE, document_errors, text_of
from nri_policy.cli.cluster.run import read_cluster_settings
from nri_policy.cli.cluster.service import ServiceClient, service_options
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import name_of
from nri_policy.cluster.cluster_files import ClusterFiles
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.search.unfit_message import nearest_label
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import ClusterSettings, read_levels, read_settings
from nri_policy.cluster.offline import engine_of, find_pods_elsewhere
from nri_policy.cluster.service.listing import list_cluster
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.cluster.zones.numa_node import find_unknown_policy
from nri_policy.foundation.garbage import collection_paused
from nri_policy.foundation.wording import counted, did_you_mean, one_line, quoted, some
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access, describe
from nri_policy.kube.errors import APIError, KubeconfigError

_DEFAULTS = (
    "note: the cluster has no ClusterPlacement object, so that the defaults count; name the"
    " service's file, if it has one: --settings FILE (place, explain, plan also have --service)"
)

_Command = Callable[..., Any]


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
            settings = self._with_levels(settings)
            self._note_unknown_labels(settings, snapshot)
            _note_unknown_zones(settings, snapshot)
            return snapshot, settings

    def _note_unknown_labels(self, settings: ClusterSettings, snapshot: ClusterSnapshot) -> None:
        """Note on stderr the levels that are labels of no node, with the most similar label.

        Levels of --levels are noted in any case, those of the settings if they resemble a label.
        """
        levels = dict.fromkeys(level for each in settings.topologies for level in each.levels)
        unknown = [
            level
            for level in levels
            if level != HOSTNAME and not any(level in node.labels for node in snapshot.nodes)
        ]
        if not unknown:  # as mostly: the labels of all nodes are many
            return
        labels = {HOSTNAME, *(each for node in snapshot.nodes for each in node.labels)}
        for label in unknown:
            hint = nearest_label(label, labels)
            asked = snapshot.nodes and label in (self.levels or ())
            if hint or asked:
                hint = one_line(hint or f"; there are: {some(labels)}")
                click.echo(f"note: no node has the label {quoted(label)}{hint}", err=True)

    def _lacks_settings(self, given: ClusterFiles) -> bool:
        """Whether a live cluster is asked that has no settings, and none are given."""
        named = (self.files, self.synthetic, self.settings, self.levels, self.service)
        return not any(named) and not given.settings

    def _check(self, given: ClusterFiles, snapshot: ClusterSnapshot) -> None:
        """Note on stderr what does not count; raises Failure for files without a node."""
        notes: list[str] = []
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


def _note_unknown_zones(settings: ClusterSettings, snapshot: ClusterSnapshot) -> None:
    """Note on stderr the types of zones in the settings that no node reports."""
    asked = dict.fromkeys(each for one in settings.topologies for each in one.below_host)
    if not asked or not snapshot.zones:
        return
    known = {zone.type for each in snapshot.zones for zone in each.zones}
    for name in sorted(asked.keys() - known):
        hint = did_you_mean(name, known) or f"; there are: {some(known, len(known))}"
        text = f"note: no node reports zones of type {quoted(name)} (belowHost){hint}"
        click.echo(one_line(text), err=True)


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
    def with_service(
        *args: Any, source: ClusterSource, form: str, service: ServiceClient | None, **named: Any
    ) -> Any:
        if service is not None and source.is_given:
            raise click.UsageError(
                "--service takes no cluster and no settings: the service has its own"
            )
        if service is not None and form in ("svg", "html"):
            raise click.UsageError("the service draws no pictures: -o table, json or yaml")
        return command(*args, source=source, form=form, service=service, **named)

    return with_service


def service_settings_option(command: _Command) -> _Command:
    """Give *command*, which has a `source`, the service whose settings count there."""

    @partial(service_options, use="Use the settings of the running service at https://HOST:8443.")
    @wraps(command)
    def with_settings(
        *args: Any, source: ClusterSource, service: ServiceClient | None, **named: Any
    ) -> Any:
        if service is not None:
            if source.settings is not None or source.synthetic is not None:
                raise click.UsageError("only one of --service, --settings and --synthetic")
            source = replace(source, service=service)
        return command(*args, source=source, **named)

    return with_settings
