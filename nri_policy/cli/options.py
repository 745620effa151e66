"""Options that sub-commands share: which machine, which settings, which form of output.

Errors of what they name become the program's here: a bad specification or capture is a wrong usage,
a folder without a machine in it a plain no, bad settings exit code 78.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import click
from msgspec import Struct

from nri_policy.cli.failure import Exit, Failure
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine, MemoryKind
from nri_policy.hardware.synthetic import write
from nri_policy.hardware.synthetic_spec import SpecError, parse
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.settings import Settings, SettingsError, find_settings

_Command = Callable[..., Any]
_NO_KINDS: Mapping[int, MemoryKind] = MappingProxyType({})
_MOST_SETTINGS = 1 << 20  # bytes; the loader refuses longer texts and says so


class Source(Struct, frozen=True, kw_only=True):
    """Where to read a machine from; this host, if nothing is given."""

    host_root: Path | None = None
    capture: Path | None = None
    synthetic: str | None = None

    @contextmanager
    def root(self) -> Iterator[Path]:
        """Yield the folder that holds the machine's sysfs and procfs; a temporary one goes after.

        Raises Failure or UsageError if there is none, also for a TopologyError within the context.
        """
        try:
            if self.synthetic is not None:
                with TemporaryDirectory(prefix="nri-policy-synthetic-") as folder:
                    write(self.synthetic, Path(folder))
                    yield Path(folder)
            elif self.capture is not None:
                with open_capture(self.capture) as root:
                    yield root
            else:
                yield self.host_root or Path("/")
        except SpecError as error:
            raise click.UsageError(
                f"--synthetic: {error.problem}, at character {error.position + 1}"
            ) from error
        except TopologyError as error:
            code = Exit.USAGE if self.capture else Exit.NO  # malformed, or only another folder
            raise Failure(f"{self}: {error.problem}", code) from error

    def machine(self, memory_kinds: Mapping[int, MemoryKind] = _NO_KINDS) -> Machine:
        """Return the machine; *memory_kinds*, by node id, come before what the files say.

        Raises Failure or UsageError if there is none.
        """
        with self.root() as root:
            return discover(root, memory_kinds=memory_kinds)

    def devices(self) -> dict[str, list[int]]:
        """List the NUMA node of each device that `--synthetic` names, by resource."""
        return {} if self.synthetic is None else parse(self.synthetic).list_devices()

    def __str__(self) -> str:
        if self.synthetic is not None:
            return f"--synthetic {self.synthetic!r}"
        return str(self.capture or self.host_root or "/")


def machine_options(command: _Command) -> _Command:
    """Give *command* the options that name a machine; it gets them as `source`, a Source."""

    @click.option(
        "--host-root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder with the machine's /sys and /proc.  [default: /]",
    )
    @click.option(
        "--capture",
        metavar="FILE.tar.xz",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A capture of another machine.",
    )
    @click.option(
        "--synthetic",
        metavar="SPEC",
        help='A machine that does not exist, such as "package:2 numa:2 core:4 pu:2".',
    )
    @wraps(command)
    def with_source(
        *args: Any,
        host_root: Path | None,
        capture: Path | None,
        synthetic: str | None,
        **named: Any,
    ) -> Any:
        if sum(given is not None for given in (host_root, capture, synthetic)) > 1:
            raise click.UsageError(
                "only one of --host-root, --capture and --synthetic can be given"
            )
        source = Source(host_root=host_root, capture=capture, synthetic=synthetic)
        return command(*args, source=source, **named)

    return with_source


def name_of(path: Path | str) -> str:
    """Return how messages name a file that a user gives; `-` is the standard input."""
    return "standard input" if str(path) == "-" else str(path)


def read_settings(path: Path) -> bytes:
    """Return the text of a file, or of the standard input (`-`), that has settings.

    Raises Failure where it cannot be read.
    """
    try:
        with click.open_file(path, "rb") as file:
            text: bytes = file.read(_MOST_SETTINGS + 1)
    except OSError as error:
        raise Failure(f"{name_of(path)}: {error.strerror}", Exit.SETTINGS) from error
    return text


def load_settings(path: Path) -> Settings:
    """Return the settings in a file; Failure says what is wrong with it."""
    try:
        return find_settings(read_settings(path), name_of(path)).load()
    except SettingsError as error:
        raise Failure(str(error), Exit.SETTINGS) from error


def _if_given(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Settings | None:
    return None if path is None else load_settings(path)


settings_option = click.option(
    "--settings",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_if_given,
    help="A TopologyAwarePolicy document, a ConfigMap with one, or values of the Helm chart.",
)


def _form_option(*forms: str) -> Callable[[_Command], _Command]:
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["table", "json", "yaml", *forms]),
        default="table",
        show_default=True,
        help="Output format.",
    )


form_option = _form_option()
explanation_form_option = _form_option("svg")
picture_form_option = _form_option("svg", "html")  # where there is a picture
