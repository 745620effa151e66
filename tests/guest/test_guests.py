"""Every emulated machine boots a real kernel, and the tests of `inside` for it pass there."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guest import golden, partitions
from tests.guest.emulator import Outcome, boot, prepare
from tests.guest.hardware import GUESTS
from tests.guest.image import ImageError
from tests.guest.payload import COMMAND, SEND, payload
from tools import release
from tools.debs import DebsError
from tools.environment import SetupError

SECONDS = 2400  # for one guest; on an idle machine it needs a tenth of that
LIKE_OTHERS = {"devices", "large", "sockets"}  # in all that is tried on every machine
MORE = {
    "devices": ("classes", "scheduling"),
    "plain": ("partitions", "running_partitions"),
}  # modules of tests
# Hardware does not matter to a restart of the runtime: the daemon synchronizes as after a start of
# its own, which every machine tries. Who makes the cgroups does: systemd on one of these.
RESTARTED = {"plain", "systemd"}
RESTART = "test_every_machine.py::test_nobody_moves_when_containerd_restarts"
INSIDE = "tests/guest/inside"
RESULTS, CAPTURE = "results.xml", "capture.tar.xz"  # what a guest gives back
PARTITIONS = "partitions.txt"  # the same, of the machines that have scenes of them
RUN = """\
{COMMAND}python3 -m pytest -p no:cacheprovider --confcutdir=tests/guest/inside -o addopts= \\
    --import-mode=importlib --color=no -rA --durations=8 --junitxml=/tmp/out/{RESULTS} \\
    {tests}
{last}
{SEND}"""


def script(name: str) -> str:
    """Return what runs in the machine."""
    every = () if name in LIKE_OTHERS else ("every_machine",)
    more = MORE.get(name, ())
    modules = (f"{INSIDE}/test_{each}.py" for each in ("capture", *every, name, *more))
    without = () if name in RESTARTED else (f"--deselect={INSIDE}/{RESTART}",)
    scenes = f"python3 -m tests.guest.partitions {name} > /tmp/out/{PARTITIONS}"
    last = scenes if name in partitions.MACHINES else ""  # it costs the machine CPUs
    return RUN.format(
        tests=" ".join((*modules, *without)),
        RESULTS=RESULTS,
        COMMAND=COMMAND,
        SEND=SEND,
        last=last,
    )


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Outcome]]]:
    """What becomes of each guest that is asked for: an emulated machine a core, side by side."""
    try:
        handed_in = payload(tmp_path_factory.mktemp("wheel"))
        prepare()
    except (DebsError, ImageError, release.ReleaseError, SetupError) as error:
        pytest.fail(f"the guests cannot be made: {error}", pytrace=False)
    selected = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "outcomes" in item.fixturenames
    }
    handed_in |= {"pytest.ini": "[pytest]\npythonpath = .\n"}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield {
            name: threads.submit(
                boot,
                hardware,
                handed_in | {"run": script(name)},
                tmp_path_factory.mktemp(name),
                seconds=SECONDS,
            )
            for name, hardware in GUESTS.items()
            if name in selected
        }
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", GUESTS)
def test_the_kernel_does_what_the_policy_decides(
    name: str, outcomes: Mapping[str, Future[Outcome]], record_property: Callable[..., None]
) -> None:
    outcome = outcomes[name].result()
    record_property("guest", f"{name}: {outcome.seconds:.0f} s")
    sys.stdout.write(outcome.console[-20_000:])
    results = outcome.files.get(RESULTS)
    suite = ET.fromstring(results)[0] if results else ET.Element("testsuite")
    failed = [case.get("name") for case in suite if len(case) and case[0].tag != "properties"]
    assert not failed
    assert int(suite.get("tests", 0)), "no test ran"


@pytest.mark.parametrize("name", GUESTS)
def test_the_machine_reads_as_its_golden_capture(
    name: str, outcomes: Mapping[str, Future[Outcome]], tmp_path: Path
) -> None:
    capture = tmp_path / CAPTURE
    capture.write_bytes(outcomes[name].result().files[CAPTURE])
    if os.environ.get("NRI_POLICY_TAKE_CAPTURES"):
        golden.take(name, capture.read_bytes())
    assert json.loads(golden.shown(capture, "json")) == golden.expected(name)


@pytest.mark.parametrize("name", partitions.MACHINES)
def test_the_kernel_does_with_partitions_what_is_recorded(
    name: str, outcomes: Mapping[str, Future[Outcome]]
) -> None:
    played = partitions.parse(outcomes[name].result().files[PARTITIONS].decode())
    recorded = partitions.parse(partitions.RECORDING.read_text())
    if os.environ.get("NRI_POLICY_TAKE_CAPTURES"):
        recorded |= played
        partitions.RECORDING.write_text(partitions.text_of(recorded))
    assert played == {scene: recorded[scene] for scene in partitions.MACHINES[name]}
