"""Options that name a cluster: files of one, or one that does not exist."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from nri_policy.cli.cluster_run import read_cluster_settings
from nri_policy.cli.failure import Failure
from nri_policy.cluster import synthetic
from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.files import Files, read_documents
from nri_policy.cluster.group import PlacementGroup
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.settings import read_settings
from nri_policy.cluster.snapshot import Snapshot, read_snapshot
from nri_policy.cluster.workload import read_groups

_Command = Callable[..., Any]
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)

documents_option = click.option(
    "-f",
    "--file",
    "asked",
    type=_FILE,
    multiple=True,
    help="Pods, Jobs, Deployments, StatefulSets, ReplicaSets or PlacementGroups; - is stdin.",
)


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """Where to read a cluster from."""

    files: tuple[Path, ...]
    synthetic: str | None
    settings: Path | None

    def load(self) -> tuple[Engine, Snapshot]:
        """Return an engine that knows the cluster; raises Failure or UsageError."""
        if not self.files and self.synthetic is None:
            raise click.UsageError("no cluster is named: give --cluster FILE or --synthetic SPEC")
        given = Files()
        with told():
            if self.synthetic is not None:
                made = synthetic.make(self.synthetic)
                given = Files(cluster=made.cluster, settings=made.settings)
            for path in self.files:
                given.add(text_of(path), str(path))
            snapshot = read_snapshot(given.cluster)
            if self.settings is not None:
                return engine_of(snapshot, read_cluster_settings(self.settings)), snapshot
            return engine_of(snapshot, read_settings(given.settings)), snapshot


def cluster_options(command: _Command) -> _Command:
    """Give *command* the options that name a cluster; it gets them as `source`."""

    @click.option(
        "--cluster",
        "files",
        metavar="FILE",
        type=_FILE,
        multiple=True,
        help="What `kubectl get nodes,pods,noderesourcetopologies,placementgroups -A -o json`"
        " printed; - is stdin.",
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
    @wraps(command)
    def with_source(
        *args: Any,
        files: tuple[Path, ...],
        made: str | None,
        settings: Path | None,
        **named: Any,
    ) -> Any:
        return command(*args, source=ClusterSource(files, made, settings), **named)

    return with_source


@contextmanager
def told() -> Iterator[None]:
    """Make a DocumentError within the context the program's: one line, with its path."""
    try:
        yield
    except DocumentError as error:
        raise Failure(str(error)) from error


def text_of(path: Path) -> bytes:
    """Return what a file holds, or stdin for `-`; raises Failure."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error


def groups_of(paths: Iterable[Path]) -> list[PlacementGroup]:
    """Return the groups in files; raises Failure, which names the file."""
    groups = []
    for path in paths:
        with told():
            documents = [*read_documents(text_of(path), str(path))]
        try:
            groups += read_groups(documents)
        except DocumentError as error:
            raise Failure(f"{path}: {error}") from error
    return groups
