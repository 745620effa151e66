"""CPUs whose frequencies and idle states can be set, as strict as the kernel (spec classes.md §2).

The files are real ones below a folder, so everything that reads sysfs reads them. Writes go through
`write`, which accepts what the kernel accepts and changes what the kernel changes.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nri_policy.tuning.files import KernelFiles

CPU = "sys/devices/system/cpu"
WORDS = {"performance": 0, "balance_performance": 128, "balance_power": 192, "power": 255}
_UNCORE_STEP, _UNCORE_MOST = 100_000, 127
_POLICY = re.compile(r"cpufreq/policy(\d+)/(\w+)")
_STATE = re.compile(r"cpu(\d+)/cpuidle/state(\d+)/disable")
_LATENCY = re.compile(r"cpu(\d+)/power/pm_qos_resume_latency_us")
_UNCORE = re.compile(r"intel_uncore_frequency/(\w+)/(min|max)_freq_khz")


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _unsigned(data: bytes) -> int:
    """Return the number in a write, as kstrtoul reads it."""
    try:
        text = data.decode().removesuffix("\n").removeprefix("+")
        if not re.fullmatch(r"0[xX][0-9a-fA-F]+|[0-9]+", text):
            raise _refuse(errno.EINVAL)
        number = int(text, 16 if text[:2].lower() == "0x" else 10)
    except UnicodeDecodeError:
        raise _refuse(errno.EINVAL) from None
    if number >= 1 << 64:
        raise _refuse(errno.ERANGE)
    return number


class FakeCPUs:
    """The CPU folder of a host."""

    def __init__(self, root: Path, *, capable: bool = True) -> None:
        """Begin with nothing; *capable* is whether writers have CAP_SYS_ADMIN."""
        self.root = root
        self.capable = capable
        self.offline: set[int] = set()
        self._asked: dict[str, tuple[int, int]] = {}  # policy -> minimum and maximum
        self._saved: dict[str, int] = {}  # policy -> the preference under other governors
        self._dies: dict[str, str] = {}  # folder -> open, locked, offline

    def add_policy(
        self,
        number: int,
        cpus: Iterable[int],
        *,
        low: int = 800_000,
        base: int | None = 2_400_000,
        high: int = 3_600_000,
        driver: str = "intel_pstate",
        governors: str = "performance powersave",
        words: str = "default performance balance_performance balance_power power",
    ) -> None:
        """Add CPUs that are set together."""
        policy = f"cpufreq/policy{number}"
        self._asked[policy] = (low, high)
        self._saved[policy] = WORDS["balance_performance"]
        listed = " ".join(map(str, cpus))
        files: dict[str, object] = {
            "affected_cpus": listed,
            "related_cpus": listed,
            "cpuinfo_min_freq": low,
            "cpuinfo_max_freq": high,
            "scaling_min_freq": low,
            "scaling_max_freq": high,
            "scaling_driver": driver,
            "scaling_available_governors": governors,
            "scaling_governor": governors.rsplit(maxsplit=1)[-1],
        }
        if base is not None:
            files["base_frequency"] = base
        if words:
            files["energy_performance_available_preferences"] = words
            files["energy_performance_preference"] = "balance_performance"
        for name, value in files.items():
            self._put(f"{policy}/{name}", value)

    def add_states(self, cpus: Iterable[int], states: Mapping[str, int]) -> None:
        """Give CPUs C-states, by name with the latency in µs."""
        for cpu in cpus:
            self._put(f"cpu{cpu}/power/pm_qos_resume_latency_us", 0)
            for number, (name, latency) in enumerate(states.items()):
                folder = f"cpu{cpu}/cpuidle/state{number}"
                for file, value in (("name", name), ("latency", latency), ("disable", 0)):
                    self._put(f"{folder}/{file}", value)

    def add_die(self, folder: str, low: int, high: int, state: str = "open") -> None:
        """Add an uncore frequency; *state* `locked` is one that the firmware keeps."""
        self._dies[folder] = state
        for name, value in (("min", low), ("max", high)):
            for prefix in ("", "initial_"):
                self._put(f"intel_uncore_frequency/{folder}/{prefix}{name}_freq_khz", value)

    def read(self, path: str) -> str:
        """Return the text of a file below the CPU folder."""
        return (self.root / CPU / path).read_text().strip()

    def texts(self) -> dict[str, str]:
        """Return all files."""
        top = self.root / CPU
        return {
            str(path.relative_to(top)): path.read_text()
            for path in top.rglob("*")
            if path.is_file()
        }

    def write(self, path: str, data: bytes) -> int:
        """Write a file below the CPU folder, as the kernel does; OSError."""
        if not (self.root / CPU / path).exists():
            raise _refuse(errno.ENOENT)
        for pattern, store in self._stores():
            if found := pattern.fullmatch(path):
                if data:  # an empty write does not reach the driver
                    store(path, found, data)
                return len(data)
        raise _refuse(errno.EACCES)

    def _stores(self) -> list[tuple[re.Pattern[str], Callable[[str, re.Match[str], bytes], None]]]:
        return [
            (_POLICY, self._store_policy),
            (_STATE, self._store_state),
            (_LATENCY, self._store_latency),
            (_UNCORE, self._store_uncore),
        ]

    def _put(self, path: str, value: object) -> None:
        file = self.root / CPU / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def _store_policy(self, _: str, found: re.Match[str], data: bytes) -> None:
        policy, name = f"cpufreq/policy{found[1]}", found[2]
        store = {
            "scaling_min_freq": self._store_range,
            "scaling_max_freq": self._store_range,
            "scaling_governor": self._store_governor,
            "energy_performance_preference": self._store_preference,
        }.get(name)
        if store is None:
            raise _refuse(errno.EACCES)
        if {*map(int, self.read(f"{policy}/related_cpus").split())} <= self.offline:
            raise _refuse(errno.EBUSY)
        store(policy, name, data)

    def _store_range(self, policy: str, name: str, data: bytes) -> None:
        asked, number = self._asked[policy], _unsigned(data)
        asked = (number, asked[1]) if "min" in name else (asked[0], number)
        self._asked[policy] = asked
        low, high = (int(self.read(f"{policy}/cpuinfo_{each}_freq")) for each in ("min", "max"))
        maximum = max(low, min(high, asked[1]))
        self._put(f"{policy}/scaling_max_freq", maximum)
        self._put(f"{policy}/scaling_min_freq", min(max(low, asked[0]), maximum))

    def _store_governor(self, policy: str, _: str, data: bytes) -> None:
        governor = data.decode().strip()
        if governor not in self.read(f"{policy}/scaling_available_governors").split():
            raise _refuse(errno.EINVAL)
        self._put(f"{policy}/scaling_governor", governor)
        if (self.root / CPU / policy / "energy_performance_preference").exists():
            # the driver keeps the preference of the other governors
            own = 0 if governor == "performance" else self._saved[policy]
            self._show_preference(policy, own)

    def _store_preference(self, policy: str, _: str, data: bytes) -> None:
        text = data.decode().strip()
        numeric = self.read(f"{policy}/scaling_driver").startswith("intel")
        if text in self.read(f"{policy}/energy_performance_available_preferences").split():
            number = WORDS.get(text, WORDS["balance_performance"])
        elif numeric and re.fullmatch(r"[0-9]{1,9}", text) and int(text) <= 255:
            number = int(text)
        else:
            raise _refuse(errno.EINVAL)
        if number and self.read(f"{policy}/scaling_governor") == "performance":
            raise _refuse(errno.EBUSY)
        self._saved[policy] = number
        self._show_preference(policy, number)

    def _show_preference(self, policy: str, number: int) -> None:
        word = {value: word for word, value in WORDS.items()}.get(number, number)
        self._put(f"{policy}/energy_performance_preference", word)

    def _store_state(self, path: str, _: re.Match[str], data: bytes) -> None:
        if not self.capable:
            raise _refuse(errno.EPERM)
        number = _unsigned(data)
        if number > 1:
            raise _refuse(errno.EINVAL)
        self._put(path, number)

    def _store_latency(self, path: str, _: re.Match[str], data: bytes) -> None:
        text = data.decode().strip()
        if text != "n/a" and _unsigned(data) >= (1 << 31) - 1:  # S32_MAX stands for none
            raise _refuse(errno.EINVAL)
        self._put(path, text)

    def _store_uncore(self, path: str, found: re.Match[str], data: bytes) -> None:
        state = self._dies[found[1]]
        ratio = _unsigned(data) // _UNCORE_STEP
        if not 0 < ratio <= _UNCORE_MOST:
            raise _refuse(errno.EINVAL)
        if state != "open":
            raise _refuse(errno.EPERM if state == "locked" else errno.ENXIO)
        self._put(path, ratio * _UNCORE_STEP)


class FakeFiles(KernelFiles):
    """The tuner's files, on these CPUs."""

    def __init__(self, cpus: FakeCPUs) -> None:
        super().__init__(cpus.root)
        self._cpus = cpus

    def store(self, path: Path, value: str) -> None:
        """Write as the kernel does; OSError."""
        self._cpus.write(str(path.relative_to(self._cpus.root / CPU)), value.encode())


def two_kinds(root: Path) -> FakeCPUs:
    """Return a hybrid machine: fast CPUs 0 and 1, and slow CPUs 2 and 3, which are set together."""
    cpus = FakeCPUs(root)
    cpus.add_policy(0, [0])
    cpus.add_policy(1, [1])
    cpus.add_policy(2, [2, 3], low=400_000, base=1_600_000, high=2_800_000)
    cpus.add_states([0, 1], {"POLL": 0, "C1": 2, "C6": 170, "C8": 280})
    cpus.add_states([2, 3], {"POLL": 0, "C1": 1, "C6": 130})
    cpus.add_die("package_00_die_00", 800_000, 2_500_000)
    return cpus


HYBRID = "package:1 core:4 pu:1"  # the synthetic machine to write beside it
