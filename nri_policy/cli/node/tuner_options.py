"""Options of the commands about tunables: where the tuner and its journal are."""

from __future__ import annotations

from pathlib import Path

import click

from nri_policy.tuning.protocol import SOCKET, STATE_DIR

tuner_socket_option = click.option(
    "--tuner-socket",
    type=click.Path(path_type=Path, readable=False),  # the connection says whether we may
    default=SOCKET,
    show_default=True,
    envvar="NRI_POLICY_TUNER_SOCKET",
    help="The tuner's socket.",
)
journal_dir_option = click.option(
    "--journal-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=STATE_DIR,
    show_default=True,
    help="Folder of the tuner's journal: the original values of all that it has set.",
)
