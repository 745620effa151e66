"""What the kernel does with partitions of cpusets: steps, played on its files and on the fake ones.

A scene is a list of steps, a step is a line: `make`, `remove` and `start` (a process in it) have a
cgroup; `cpus`, `exclusive` and `partition` write that file of one, `-` writes nothing; `pin` sets
the affinity of its process; `offline` and `online` have a CPU. Cgroups are paths below the root;
`.` is the root. `play` writes what came of each step: the error, and each cgroup that reads
otherwise than before.
What `TREE` does is not written. `partitions.txt` has what Linux 6.12 did on the machines
`plain` and, in the scenes of `AT_BOOT`, `isolated`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Protocol

from nri_policy.foundation.cpuset import CPUSet

CPUS = CPUSet(range(16))  # of both machines
BOOT_ISOLATED = CPUSet(range(4, 8))  # of `isolated`
RECORDING = Path(__file__).with_name("partitions.txt")
FILES = {"cpus": "cpuset.cpus", "exclusive": "cpuset.cpus.exclusive"}
PARTITION, EFFECTIVE = "cpuset.cpus.partition", "cpuset.cpus.effective"
ISOLATED = "cpuset.cpus.isolated"  # of the root only

TREE = """\
make pods
make pods/a
make pods/a/owner
start pods/a/owner
make pods/b
make pods/b/other
start pods/b/other
cpus pods/b/other 0-3
make host
start host
pin pods/a/owner 0-15
pin pods/b/other 0-15
pin host 0-15
"""


def owning(cgroup: str, cpus: str, kind: str = "root") -> str:
    """Return the steps by which a cgroup, two below the root, gets CPUs and becomes a partition."""
    top, pod, _ = cgroup.split("/")
    return f"""\
exclusive {top} {cpus}
exclusive {top}/{pod} {cpus}
cpus {cgroup} {cpus}
exclusive {cgroup} {cpus}
partition {cgroup} {kind}
"""


OWNER = TREE + owning("pods/a/owner", "2-3")
SIDE = "make pods/a/side\nstart pods/a/side\n"  # a sharer of the owner's pod

OVERLAPPED = f"{OWNER}{SIDE}cpus pods/a/side 0-3\n"

SCENES = {
    "all others lose the CPUs in the write that makes a partition": OWNER,
    "a cgroup with only exclusive CPUs runs on its parent's": f"""{OWNER}
make pods/c
make pods/c/new
cpus pods/c/new 2-3
start pods/c/new
""",
    "a stale write to a neighbour takes effect on what is left": f"""{OWNER}
cpus pods/b/other 3
cpus pods/b/other 1-3
""",
    "a stale write to the owner has no effect": f"""{OWNER}
cpus pods/a/owner 0-3
cpus pods/a/owner 2-3
""",
    "no process can be pinned to exclusive CPUs": f"""{OWNER}
pin host 3
pin host 1,3
pin pods/b/other 2-3
pin pods/a/owner 3
start .
pin . 3
pin . 4
""",
    "writes to an ancestor's CPUs have no effect": f"""{OWNER}
cpus pods 0-3
cpus pods 0-1
cpus pods 4-7
cpus pods -
cpus pods/a 0-1
""",
    "writes to another top cgroup have no effect": f"""{TREE}
cpus host 0-3
{owning("pods/a/owner", "2-3")}
cpus host 2-3
cpus host 0-7
cpus host -
""",
    "an isolated partition is named by the root": f"""{TREE}
{owning("pods/a/owner", "2-3", "isolated")}
partition pods/a/owner root
partition pods/a/owner isolated
partition pods/a/owner member
""",
    "an owner grows from the top down": f"""{OWNER}
exclusive pods 2-5
exclusive pods/a 2-5
exclusive pods/a/owner 2-5
cpus pods/a/owner 2-5
""",
    "an owner shrinks from below": f"""{TREE}
{owning("pods/a/owner", "2-5")}
cpus pods/a/owner 2-3
exclusive pods/a/owner 2-3
exclusive pods/a 2-3
exclusive pods 2-3
""",
    "an owner moves": f"""{OWNER}
exclusive pods 2-7
exclusive pods/a 2-7
exclusive pods/a/owner 2-7
cpus pods/a/owner 6-7
exclusive pods/a/owner 6-7
exclusive pods/a 6-7
exclusive pods 6-7
""",
    "an owner grows without its ancestors": f"""{OWNER}
exclusive pods/a/owner 2-5
cpus pods/a/owner 2-5
""",
    "an owner grows by its CPUs alone": f"""{OWNER}
cpus pods/a/owner 2-5
exclusive pods 2-5
exclusive pods/a 2-5
exclusive pods/a/owner 2-5
""",
    "two owners of one pod, and a sharer beside them": f"""{OWNER}{SIDE}
cpus pods/a/side 0-1
make pods/a/second
start pods/a/second
exclusive pods 2-5
exclusive pods/a 2-5
cpus pods/a/second 4-5
exclusive pods/a/second 4-5
partition pods/a/second isolated
""",
    "what is below an owner is confined to its CPUs": f"""{TREE}
make pods/a/owner/inner
{owning("pods/a/owner", "2-3")}
make pods/a/owner/late
cpus pods/a/owner/late 2
cpus pods/a/owner/late 0-1
exclusive pods/a/owner/late 3
""",
    "a removed owner's CPUs go back to all": f"""{OWNER}
remove pods/a/owner
cpus pods/b/other 0-3
make pods/a/next
start pods/a/next
exclusive pods/a -
exclusive pods -
""",
    "a partition that lost a CPU is what it was": f"""{OWNER}
offline 3
online 3
""",
    "a partition that lost all CPUs is invalid until it is written": f"""{OWNER}
offline 3
offline 2
online 2
online 3
partition pods/a/owner root
partition pods/a/owner member
partition pods/a/owner root
""",
    "a partition of one CPU that was offline": f"""{TREE}
{owning("pods/a/owner", "3")}
offline 3
online 3
partition pods/a/owner root
""",
    "an isolated partition that lost all CPUs": f"""{TREE}
{owning("pods/a/owner", "3", "isolated")}
offline 3
online 3
partition pods/a/owner isolated
""",
    "a partition that nobody runs in may lose all CPUs": f"""{TREE}
make pods/c
make pods/c/empty
{owning("pods/c/empty", "5")}
offline 5
online 5
""",
    "a partition is made of a CPU that is offline": f"""{TREE}
offline 3
{owning("pods/a/owner", "3")}
online 3
partition pods/a/owner root
""",
    "CPUs go offline beside a partition": f"""{OWNER}
offline 1
online 1
cpus pods/b/other 1
offline 1
online 1
""",
    "the runtime shrinks the owner and its exclusive CPUs stay": f"""{TREE}
{owning("pods/a/owner", "4-5")}
cpus pods/a/owner 4
cpus pods/b/other 4-5
exclusive pods/a/owner 4
exclusive pods/a 4
exclusive pods 4
""",
    "a partition whose CPUs are not set": f"""{TREE}
exclusive pods 2-3
exclusive pods/a 2-3
exclusive pods/a/owner 2-3
partition pods/a/owner root
cpus pods/b/other 0-4
cpus host 0-7
{SIDE}
cpus pods/a/side 0-1
cpus pods/a/side 0-3
""",
    "a sibling that overlaps makes a partition invalid": f"""{OWNER}{SIDE}
cpus pods/a/side 0-3
cpus pods/a/side 0-1
partition pods/a/owner root
cpus pods/a/side 3
cpus pods/a/side 0
partition pods/a/owner root
""",
    "a partition that a sibling made invalid is written once more": f"""{OVERLAPPED}
cpus pods/a/side 0-1
partition pods/a/owner root
cpus pods/b/other 2-3
partition pods/a/owner member
partition pods/a/owner root
""",
    "a partition that a sibling made invalid is a member first": f"""{OVERLAPPED}
cpus pods/a/side 0-1
partition pods/a/owner member
partition pods/a/owner root
""",
    "a partition that a sibling made invalid is a member while it overlaps": f"""{OVERLAPPED}
partition pods/a/owner member
partition pods/a/owner root
cpus pods/a/side 0-1
partition pods/a/owner root
""",
    "a partition that a sibling made invalid gets another kind": f"""{OVERLAPPED}
cpus pods/a/side 0-1
partition pods/a/owner isolated
partition pods/a/owner member
partition pods/a/owner isolated
""",
    "an isolated partition that a sibling made invalid": f"""{TREE}{SIDE}
{owning("pods/a/owner", "2-3", "isolated")}
cpus pods/a/side 0-3
cpus pods/a/side 0-1
partition pods/a/owner member
partition pods/a/owner isolated
""",
    "a partition that a sibling made invalid loses its exclusive CPUs": f"""{OVERLAPPED}
cpus pods/a/side 0-1
exclusive pods/a/owner -
exclusive pods/a/owner 2-3
partition pods/a/owner root
""",
    "a partition that a sibling made invalid gets other exclusive CPUs": f"""{OVERLAPPED}
cpus pods/a/side 0-1
exclusive pods/a/owner 2
partition pods/a/owner member
exclusive pods/a/owner 2-3
partition pods/a/owner root
""",
    "a partition that a sibling made invalid gets other CPUs": f"""{OVERLAPPED}
cpus pods/a/side 0-1
cpus pods/a/owner 2
cpus pods/a/owner 2-3
partition pods/a/owner member
""",
    "the pod of a partition that a sibling made invalid loses its exclusive CPUs": f"""{OVERLAPPED}
cpus pods/a/side 0-1
exclusive pods/a -
exclusive pods/a 2-3
partition pods/a/owner member
partition pods/a/owner root
""",
    "a new sibling has all CPUs before its process comes": f"""{OWNER}
make pods/a/side
cpus pods/a/side 0-15
start pods/a/side
cpus pods/a/side 0-1,4-15
partition pods/a/owner member
partition pods/a/owner root
""",
    "the books of an owner that a crash left at each write": f"""{TREE}
exclusive pods 2-3
exclusive pods -
exclusive pods 2-3
exclusive pods/a 2-3
exclusive pods/a -
exclusive pods -
exclusive pods 2-3
exclusive pods/a 2-3
cpus pods/a/owner 2-3
exclusive pods/a/owner 2-3
exclusive pods/a/owner -
exclusive pods/a -
exclusive pods -
""",
    "a sibling overlaps before": f"""{TREE}{SIDE}
cpus pods/a/side 0-3
{owning("pods/a/owner", "2-3")}
cpus pods/a/side 0-1
partition pods/a/owner root
""",
    "a sibling without CPUs of its own does not overlap": f"{OWNER}{SIDE}",
    "a sibling has only CPUs that are to be exclusive": f"""{TREE}{SIDE}
cpus pods/a/side 3
{owning("pods/a/owner", "2-3")}
""",
    "the owner's own write overlaps with a sibling": f"""{OWNER}{SIDE}
cpus pods/a/side 4-7
exclusive pods 2-5
exclusive pods/a 2-5
exclusive pods/a/owner 2-5
cpus pods/a/owner 2-5
cpus pods/a/side 6-7
exclusive pods/a/owner 2-5
partition pods/a/owner root
""",
    "siblings' exclusive CPUs are disjoint": f"""{OWNER}
make pods/a/second
exclusive pods/a/second 3-4
exclusive pods 2-4
exclusive pods/a 2-4
exclusive pods/a/second 3
exclusive pods/a/second 4
exclusive pods/b 3
exclusive pods/b/other 3
""",
    "an ancestor's exclusive CPUs are lowered first": f"""{TREE}
{owning("pods/a/owner", "2-5")}
exclusive pods 2-3
exclusive pods/a/owner 2-3
partition pods/a/owner root
""",
    "a pod's exclusive CPUs are lowered first": f"""{TREE}
{owning("pods/a/owner", "2-5")}
exclusive pods/a 2-3
exclusive pods 2-5
exclusive pods/a 2-5
partition pods/a/owner root
""",
    "an ancestor's exclusive CPUs are taken away": f"""{OWNER}
exclusive pods -
exclusive pods 2-3
partition pods/a/owner root
""",
    "an owner's exclusive CPUs are taken away": f"""{OWNER}
exclusive pods/a/owner -
exclusive pods/a/owner 2-3
partition pods/a/owner root
""",
    "an ancestor has no exclusive CPUs": f"""{TREE}
exclusive pods 2-3
cpus pods/a/owner 2-3
exclusive pods/a/owner 2-3
partition pods/a/owner root
exclusive pods/a 2-3
partition pods/a/owner root
""",
    "ancestors have CPUs, which are not the owner's": f"""{TREE}
cpus pods 0-1
cpus pods/a 0-7
{owning("pods/a/owner", "2-3")}
""",
    "the owner has other exclusive CPUs than CPUs": f"""{TREE}
exclusive pods 2-5
exclusive pods/a 2-5
cpus pods/a/owner 2-3
exclusive pods/a/owner 3-4
partition pods/a/owner root
cpus pods/a/owner 0-1
""",
    "the owner has no exclusive CPUs": f"""{TREE}
exclusive pods 2-3
exclusive pods/a 2-3
cpus pods/a/owner 2-3
partition pods/a/owner root
""",
    "an owner without any CPUs": f"""{TREE}
exclusive pods 2-3
exclusive pods/a 2-3
partition pods/a/owner root
partition pods/a/owner member
""",
    "one CPU stays outside of all partitions": f"""{TREE}
{owning("pods/a/owner", "0-15")}
exclusive pods/a/owner 1-15
partition pods/a/owner root
""",
    "a partition grows until no CPU is outside": f"""{TREE}
{owning("pods/a/owner", "1-15")}
exclusive pods 0-15
exclusive pods/a 0-15
exclusive pods/a/owner 0-15
""",
    "the only CPU outside goes offline": f"""{TREE}
{owning("pods/a/owner", "1-15")}
offline 0
online 0
""",
    "two owners beside each other": f"""{OWNER}
exclusive pods 2-5
make pods/c
make pods/c/owner
start pods/c/owner
exclusive pods/c 4-5
cpus pods/c/owner 4-5
exclusive pods/c/owner 4-5
partition pods/c/owner isolated
remove pods/a/owner
remove pods/a
exclusive pods 4-5
""",
    "two owners swap CPUs, and both shrink first": f"""{TREE}
{owning("pods/a/owner", "2-3")}
make pods/c
make pods/c/owner
exclusive pods 2-5
exclusive pods/c 4-5
cpus pods/c/owner 4-5
exclusive pods/c/owner 4-5
partition pods/c/owner root
cpus pods/a/owner 2
exclusive pods/a/owner 2
exclusive pods/a 2
cpus pods/c/owner 4
exclusive pods/c/owner 4
exclusive pods/c 4
exclusive pods/a 2,5
exclusive pods/a/owner 2,5
cpus pods/a/owner 2,5
exclusive pods/c 3-4
exclusive pods/c/owner 3-4
cpus pods/c/owner 3-4
""",
    "an owner takes another's CPUs": f"""{OWNER}
make pods/c
make pods/c/owner
exclusive pods/c 3-4
exclusive pods 2-4
cpus pods/c/owner 3-4
exclusive pods/c/owner 3-4
partition pods/c/owner root
exclusive pods/a 2
exclusive pods/c 3-4
""",
    "CPUs that the machine does not have": f"""{OWNER}
cpus pods/b/other 3,99
exclusive pods/b 99
exclusive pods 2-3,99
partition pods/a/owner isolate
cpus pods/b/other x
""",
    "a neighbour with a process cannot lose its CPUs": f"""{OWNER}
cpus pods/b/other -
cpus pods/a/owner -
""",
    "a partition without its process": f"""{TREE}
make pods/c
make pods/c/owner
{owning("pods/c/owner", "2-3")}
cpus pods/c/owner -
start pods/c/owner
cpus pods/c/owner 2-3
""",
}

# On the machine whose CPUs 4 to 7 are isolated since boot.
AT_BOOT = {
    "CPUs that are isolated since boot": f"""{TREE}
{owning("pods/a/owner", "4-5")}
partition pods/a/owner isolated
partition pods/a/owner member
{owning("pods/a/owner", "3,6", "isolated")}
partition pods/a/owner root
partition pods/a/owner isolated
exclusive pods 3,6-7
exclusive pods/a 3,6-7
exclusive pods/a/owner 3,6-7
partition pods/a/owner member
{owning("pods/a/owner", "2-3")}
exclusive pods 2-3,7
exclusive pods/a 2-3,7
exclusive pods/a/owner 2-3,7
partition pods/a/owner root
""",
}

# The machine lacks CPUs 2 and 3 from then on: it is the last scene of all.
LOST = {
    "the CPUs of a partition that was removed while invalid are lost": f"""{OVERLAPPED}
remove pods/a/owner
make pods/a/owner
start pods/a/owner
cpus pods/a/side 0-1
cpus pods/a/owner 2-3
exclusive pods/a/owner 2-3
partition pods/a/owner root
partition pods/a/owner member
""",
}


class Cgroups(Protocol):
    """Cgroups and CPUs of a machine, real or not; what is refused raises OSError."""

    def make(self, path: str) -> None:
        """Make a cgroup."""
        ...

    def remove(self, path: str) -> None:
        """End the processes of a cgroup and remove it."""
        ...

    def start(self, path: str) -> None:
        """Start a process in a cgroup."""
        ...

    def read(self, path: str, name: str) -> str:
        """Return the content of a file, without the end of the line."""
        ...

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file."""
        ...

    def pin(self, path: str, cpus: CPUSet) -> None:
        """Set the affinity of the process of a cgroup."""
        ...

    def allowed(self, path: str) -> CPUSet | None:
        """Return the CPUs that the process of a cgroup may run on; None: none was started."""
        ...

    def plug(self, cpu: int, *, on: bool) -> None:
        """Switch a CPU on or off."""
        ...


def play(cgroups: Cgroups, steps: str) -> str:
    """Return what came of each step."""
    played: list[str] = []
    made, before = ["."], {".": _root(cgroups)}
    known = TREE.count("\n") if steps.startswith(TREE) else 0
    for number, step in enumerate(filter(None, steps.splitlines())):
        verb, subject, *value = step.split()
        try:
            match verb:
                case "make":
                    cgroups.make(subject)
                    made.append(subject)
                case "remove":
                    cgroups.remove(subject)
                    made.remove(subject)
                case "start":
                    cgroups.start(subject)
                case "pin":
                    cgroups.pin(subject, CPUSet.parse(value[0]))
                case "offline" | "online":
                    cgroups.plug(int(subject), on=verb == "online")
                case _:
                    text = "" if value == ["-"] else value[0]
                    cgroups.write(subject, FILES.get(verb, PARTITION), text)
            outcome = step
        except OSError as error:
            outcome = f"{step}: {errno.errorcode[error.errno or 0]}"
        if number + 1 < known:
            continue
        now = {each: _shown(cgroups, each) for each in made}
        changed = [f"    {each}: {text}" for each, text in now.items() if text != before.get(each)]
        if number >= known:
            played += [outcome, *changed]
        before = now
    return "\n".join(played) + "\n"


def _root(cgroups: Cgroups) -> str:
    isolated = cgroups.read(".", ISOLATED)
    shown = f"effective {cgroups.read('.', EFFECTIVE)}"
    return shown + (f", isolated {isolated}" if isolated else "") + _process(cgroups, ".")


def _shown(cgroups: Cgroups, path: str) -> str:
    if path == ".":
        return _root(cgroups)
    files = ((verb, cgroups.read(path, name)) for verb, name in FILES.items())
    given = "".join(f"{verb} {text}, " for verb, text in files if text)
    kind = cgroups.read(path, PARTITION)
    shown = f"{given}effective {cgroups.read(path, EFFECTIVE)}"
    return shown + (f", {kind}" if kind != "member" else "") + _process(cgroups, path)


def _process(cgroups: Cgroups, path: str) -> str:
    allowed = cgroups.allowed(path)
    return "" if allowed is None else f", runs on {allowed}"


def storm(seed: int, length: int) -> str:
    """Return steps of many kinds in any order: of owners and sharers in two pods, and a service."""
    random = Random(seed)
    leaves = [f"pods/{pod}/{name}" for pod in "ab" for name in "xyz"]
    inner = ["pods", "pods/a", "pods/b"]
    steps = [f"make {each}" for each in (*inner, *leaves, "host")]
    steps += [f"start {each}" for each in (*leaves[::2], "host")]
    offline: set[int] = set()

    def some(most: int = 3) -> str:
        return str(CPUSet(random.sample(range(8), random.randint(1, most))))

    for _ in range(length):
        match random.random():
            case chance if chance < 0.3:
                steps.append(f"cpus {random.choice([*leaves, 'host'])} {some()}")
            case chance if chance < 0.4:
                steps.append(f"exclusive {random.choice(inner)} {some(8)}")
            case chance if chance < 0.6:
                steps.append(f"exclusive {random.choice(leaves)} {some()}")
            case chance if chance < 0.85:
                kind = random.choice(("root", "root", "isolated", "member"))
                steps.append(f"partition {random.choice(leaves)} {kind}")
            case chance if chance < 0.9:
                leaf = random.choice(leaves)
                steps += [f"remove {leaf}", f"make {leaf}", f"start {leaf}"]
            case chance if chance < 0.95 and offline:
                steps.append(f"online {offline.pop()}")
            case _:
                cpu = random.randrange(1, 8)
                if cpu not in offline:
                    offline.add(cpu)
                    steps.append(f"offline {cpu}")
    return "\n".join(steps)


STORMS = {f"storm {seed}": storm(seed, 120) for seed in range(3)}
# By the name of the machine; the last one costs the machine CPUs.
MACHINES = {"plain": SCENES | STORMS | LOST, "isolated": AT_BOOT}


class RealCgroups:
    """The kernel's cgroups of version 2; everything that it made is removed at the end."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        """Take where they are mounted."""
        self._root = root
        self._made: list[str] = []
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._offline: set[int] = set()
        self._files: dict[tuple[str, str], int] = {}  # open for reading

    def make(self, path: str) -> None:
        """Make a cgroup; the one above hands the controller down."""
        folder = self._root / path
        control = folder.parent / "cgroup.subtree_control"
        if "cpuset" not in control.read_text().split():
            control.write_text("+cpuset")
        folder.mkdir()
        self._made.append(path)

    def remove(self, path: str) -> None:
        """End the processes of a cgroup and remove it."""
        for process in self._processes.pop(path, []):
            process.kill()
            process.wait()
        if path in self._made:
            (self._root / path).rmdir()
            self._made.remove(path)
        for each in [each for each in self._files if each[0] == path]:
            os.close(self._files.pop(each))

    def start(self, path: str) -> None:
        """Start a process in a cgroup."""
        process = subprocess.Popen(["sleep", "1000000"])
        self._processes.setdefault(path, []).append(process)
        (self._root / path / "cgroup.procs").write_text(str(process.pid))

    def read(self, path: str, name: str) -> str:
        """Return the content of a file, which stays open: an emulated machine opens slowly."""
        if (path, name) not in self._files:
            self._files[path, name] = os.open(self._root / path / name, os.O_RDONLY)
        return os.pread(self._files[path, name], 4096, 0).decode().strip()

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file, in one call."""
        file = os.open(self._root / path / name, os.O_WRONLY)
        try:
            os.write(file, f"{text}\n".encode())
        finally:
            os.close(file)

    def pin(self, path: str, cpus: CPUSet) -> None:
        """Set the affinity of the process of a cgroup."""
        os.sched_setaffinity(self._processes[path][0].pid, cpus)

    def allowed(self, path: str) -> CPUSet | None:
        """Return the CPUs that the process of a cgroup may run on."""
        processes = self._processes.get(path)
        return CPUSet(os.sched_getaffinity(processes[0].pid)) if processes else None

    def plug(self, cpu: int, *, on: bool) -> None:
        """Switch a CPU on or off."""
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(on)))
        (self._offline.discard if on else self._offline.add)(cpu)

    def clear(self) -> None:
        """Make everything as it was."""
        for cpu in sorted(self._offline):
            self.plug(cpu, on=True)
        for path in self._made:
            with suppress(OSError):
                self.write(path, PARTITION, "member")
        for path in (*reversed(self._made), "."):
            self.remove(path)


def record(scenes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what the kernel of this machine does in each scene, by its name."""
    for name, steps in scenes.items():
        cgroups = RealCgroups()
        try:
            yield name, play(cgroups, steps)
        finally:
            cgroups.clear()


def text_of(recording: Mapping[str, str]) -> str:
    """Return a recording as it is kept."""
    return "\n".join(f"# {name}\n{played}" for name, played in recording.items())


def parse(text: str) -> dict[str, str]:
    """Return what a recording has of each scene."""
    scenes = (each.partition("\n") for each in text.removeprefix("# ").split("\n# "))
    return {name: played.strip("\n") + "\n" for name, _, played in scenes}


if __name__ == "__main__":
    sys.stdout.write(text_of(dict(record(MACHINES[sys.argv[1]]))))
