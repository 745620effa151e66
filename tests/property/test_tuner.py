"""Whatever a client sends, the tuner writes nothing but what is on its closed list."""

from __future__ import annotations

import re
import socket
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.clock import Clock
from nri_policy.hardware.resctrl import RESCTRL
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.protocol import Reply
from nri_policy.tuning.server import answer
from nri_policy.tuning.tuner import Tuner
from nri_policy.tuning.tuner_journal import FILE, TunerJournal
from tests.support.fake_cpus import two_kinds
from tests.support.fake_resctrl import FakeResctrl
from tests.support.tunables import BOOT, make_host

# The list, written a second time: files, and the values of each.
_LISTS = r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"
_SHARES = r"[A-Z0-9]+:[0-9]+=[0-9a-f]+(;[0-9]+=[0-9a-f]+)*\n"
ALLOWED = {
    r"proc/irq/[0-9]+/smp_affinity_list": _LISTS,
    r"proc/irq/default_smp_affinity": r"[0-9a-f]{8}(,[0-9a-f]{8})*",
    r"sys/devices/system/cpu/cpu[0-9]+/power/pm_qos_resume_latency_us": r"n/a|[0-9]+",
    r"sys/devices/system/cpu/cpu[0-9]+/cpuidle/state[0-9]+/disable": r"[01]",
    r"sys/devices/system/cpu/cpufreq/policy[0-9]+/scaling_(min|max)_freq": r"[0-9]+",
    r"sys/devices/system/cpu/cpufreq/policy[0-9]+/scaling_governor": r"[a-z][a-z0-9_]*",
    r"sys/devices/system/cpu/cpufreq/policy[0-9]+/energy_performance_preference": r"[a-z0-9_]+",
    r"sys/devices/system/cpu/intel_uncore_frequency/[a-z0-9_]+/(min|max)_freq_khz": r"[0-9]+",
    rf"{RESCTRL}/[A-Za-z0-9_-][A-Za-z0-9._-]*/schemata": rf"({_SHARES})+",
    rf"{RESCTRL}/[A-Za-z0-9_-][A-Za-z0-9._-]*": r"made|removed",
}

VALID = (
    ("irq", "24", "affinity", "1"),
    ("irq", "25", "affinity", "0,3"),
    ("irq", "default", "affinity", "0-1"),
    ("cpu", "0", "resume_latency", "n/a"),
    ("cpu", "1", "resume_latency", "2"),
    ("cpu", "2", "state1", "1"),
    ("cpufreq", "0", "min_freq", "1600000"),
    ("cpufreq", "1", "max_freq", "2400000"),
    ("cpufreq", "2", "governor", "performance"),
    ("cpufreq", "1", "epp", "128"),
    ("uncore", "package_00_die_00", "min_freq", "1000000"),
    ("resctrl", "gold", "schemata", "L3:0=ff"),
    ("resctrl", "a.b-c_1", "schemata", "L3:0=f\nMB:0=50"),
    ("resctrl", "gold", "schemata", ""),
)
odd = (
    st.sampled_from(
        [
            *("..", "../24", "24/../../../etc", "24\n", "", "\u0664", "info", "mon_groups", "a/b"),
            *("0x1", "-1", "2-1", "1,0", "L3:0=f\n\nMB:0=50", "L3:0=f;", "L3:0=ff\n", "state01"),
        ]
    )
    | st.sampled_from([part for each in VALID for part in each])
    | st.text(max_size=6)
)


def _wish(parts: tuple[str, ...], place: int, other: str) -> object:
    """Return a wish with one part replaced: of the kind, the id, the attribute, or the value."""
    kind, id_, attribute, value = (*parts[:place], other, *parts[place + 1 :])[:4]
    return {"item": {"kind": kind, "id": id_, "attribute": attribute}, "value": value}


wishes = st.builds(_wish, st.sampled_from(VALID), st.sampled_from((0, 1, 2, 3, *[4] * 12)), odd)
requests = st.fixed_dictionaries(
    {"wishes": st.lists(wishes, max_size=5)},
    optional={"repair": st.booleans(), "whole": st.booleans()},
)
lines = requests.map(msgspec.json.encode) | st.binary(max_size=80)


@cache
def _host() -> Path:
    root = make_host(Path(tempfile.mkdtemp(prefix="tuner-")), {24: "0-3", 25: "2"})
    two_kinds(root)
    FakeResctrl(root, caches={"L3": 20}, ids=[0])
    return root


class Recorded(KernelFiles):
    """The files of a host, which keep what would be written: by path, a value."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._top = root
        self.written: list[tuple[str, str]] = []

    def _add(self, path: Path, value: str) -> None:
        self.written.append((str(path.relative_to(self._top)), value))

    def store(self, path: Path, value: str) -> None:
        self._add(path, value)

    def make_group(self, path: Path) -> None:
        self._add(path, "made")

    def remove_group(self, path: Path) -> None:
        self._add(path, "removed")


@given(sent=st.lists(lines, min_size=1, max_size=3))
def test_whatever_is_sent_only_the_closed_list_is_written(sent: list[bytes]) -> None:
    files = Recorded(_host())
    with tempfile.TemporaryDirectory() as folder:
        journal = TunerJournal(Path(folder), BOOT)
        tuner = Tuner(files, journal, clock=Clock(now=lambda: 0.0, date=lambda: 0.0))
        for line in sent:
            ours, theirs = socket.socketpair()
            with closing(ours), closing(theirs):
                theirs.sendall(line.replace(b"\n", b" ") + b"\n")
                theirs.shutdown(socket.SHUT_WR)
                assert isinstance(answer(tuner, ours), Reply)
        assert {path.name for path in Path(folder).iterdir()} <= {FILE}
    for path, value in files.written:
        found = [each for each in ALLOWED if re.fullmatch(each, path)]
        assert any(re.fullmatch(ALLOWED[each], value) for each in found), (path, value)
    for path, _ in files.written:
        assert ".." not in path.split("/")
