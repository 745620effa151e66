"""Documents that commands are given: their texts, the groups and other objects in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import name_of
from nri_policy.cluster.cluster_files import read_documents
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.device_claims import DeviceClaims
from nri_policy.cluster.objects.document import DocumentError, Object
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.planning.job_set_steps import expect_steps
from nri_policy.cluster.planning.preview import find_group, pick_group
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.workloads.workload import (
    KINDS,
    add_claims,
    add_priority_classes,
    describe_left_out_kinds,
    each_object,
    is_left_out,
    read_groups,
)

MAX_SIZE = 2 << 30  # bytes of a file; 200,000 pods as kubectl prints them take half of it
_CHUNK = 1 << 20

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

    Without a name, it is the only one in the files. The engine then expects other steps of its
    JobSet there. Raises Failure and DocumentError.
    """
    if asked or name is None:
        groups = groups_of(asked, classes, devices)
        expect_steps(engine.state, groups)
        return pick_group(groups, name, _names(asked))
    try:
        return find_group(engine.state.groups, name)
    except DocumentError as error:
        raise DocumentError("", f"{error} (pods in a file: -f FILE)") from None


def group_of(asked: tuple[Path, ...], name: str | None) -> PlacementGroup:
    """Return the group of that name in files, or the only one; raises Failure and DocumentError."""
    return pick_group(groups_of(asked, PriorityClasses()), name, _names(asked))


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(map(name_of, paths))


def _require(found: Sequence[object], paths: Iterable[Path], documents: list[Object]) -> None:
    """Raise Failure if nothing was *found* in files to place; else note what is left out."""
    text = describe_left_out_kinds(documents)
    if not found:
        problem = "there is no object to place in it"
        if text:
            problem += f": {text}; these can be placed: {', '.join(KINDS)}"
        raise Failure(f"{_names(paths)}: {problem}", Exit.USAGE)
    if text:
        note_left_out(text)


def note_left_out(text: str) -> None:
    """Note on stderr the kinds of objects that are not placed."""
    click.echo(f"note: left out, as they are not placed: {text}", err=True)
