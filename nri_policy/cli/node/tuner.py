"""`nri-policy tuner`: the process that sets kernel tunables for the daemon."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from nri_policy.cli.failure import Failure
from nri_policy.cli.node.host_options import host_root_option
from nri_policy.cli.node.tuner_options import journal_dir_option, tuner_socket_option
from nri_policy.foundation.singleton import AlreadyRunningError
from nri_policy.observability.logs import Form, set_up
from nri_policy.tuning.server import listening, open_tuner, serve

log = logging.getLogger(__name__)


@click.command
@host_root_option("Folder with the host's /sys and /proc.")
@journal_dir_option
@tuner_socket_option
@click.option(
    "--log-format",
    type=click.Choice([form.value for form in Form]),
    default=Form.TEXT.value,
    show_default=True,
    help="Format of the log on stderr: key=value, or JSON.",
)
def command(host_root: Path, journal_dir: Path, tuner_socket: Path, log_format: str) -> None:
    """Set kernel tunables for the daemon: interrupts, CPUs, caches.

    The daemon may write none of them itself. What the tuner accepts is a closed list, and it keeps
    a journal of the original values. When it ends, the values stay.
    """
    set_up(Form(log_format))
    try:
        with open_tuner(host_root, journal_dir) as tuner, listening(tuner_socket) as listener:
            log.info("tuner-started", extra={"socket": str(tuner_socket)})
            serve(tuner, listener)
    except (AlreadyRunningError, OSError) as error:
        raise Failure(str(error)) from error
