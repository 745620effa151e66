"""`nri-policy capture`: this host's hardware as a file, to be read as if it were there."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import click

from nri_policy.cli.failure import Failure
from nri_policy.cli.terminal.progress import progress
from nri_policy.hardware.capture_writer import pack
from nri_policy.hardware.sysfs import TopologyError

_MOST_NOTES = 10


@click.command
@click.argument("file", metavar="FILE.tar.xz", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--host-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Folder with the host's /sys and /proc.",
)
@click.option("--force", is_flag=True, help="Replace FILE.tar.xz if it exists.")
def command(file: Path, host_root: Path, force: bool) -> None:
    """Save a description of this host's hardware to a file.

    For bug reports and simulations: other commands accept it as --capture FILE.tar.xz, on any
    machine. The file has what the policy
    itself reads from /sys and /proc about CPUs, caches, memory and devices. It has no names of
    processes, pods or the host, no serial numbers and no network addresses. Root is not needed:
    files that only root can read are left out and listed.
    """
    if not file.name.endswith(".tar.xz"):
        raise click.UsageError(f"{file}: a capture is a .tar.xz file; give it such a name")
    if os.path.lexists(file) and not force:
        raise Failure(f"{file} exists already; --force replaces it")
    packed = BytesIO()  # whole before it is written: a few hundred KB, for 4096 CPUs some MB
    try:
        with progress(f"reading {host_root}") as step:
            notes = pack(host_root, packed, step)
        with file.open("wb" if force else "xb") as out:
            out.write(packed.getbuffer())
    except TopologyError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from error
    for note in notes[:_MOST_NOTES]:
        click.echo(f"left out: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        click.echo(f"left out: {len(notes) - _MOST_NOTES} more", err=True)
    if notes and os.geteuid() != 0:
        click.echo("Run it as root to include these.", err=True)
    size = f"{packed.tell() / 1024:.0f} KiB"
    click.echo(f"{file}: {size}; to see it: nri-policy topology --capture {file}", err=True)
