"""A host's /sys and /proc as files: cgroups of either version, and threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STAT = "{} (a (name) R) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {} 4096 1 0"


@dataclass
class Cgroup:
    """One cgroup, to be changed like the kernel's."""

    folder: Path
    version: int

    def set(self, name: str, effective: str, written: str | None = None) -> None:
        files = {
            1: (f"cpuset.{name}", f"cpuset.effective_{name}"),
            2: (f"cpuset.{name}", f"cpuset.{name}.effective"),
        }[self.version]
        texts = effective if written is None else written, effective
        for file, text in zip(files, texts, strict=True):
            (self.folder / file).write_text(f"{text}\n")

    def hold(self, *threads: int) -> None:
        """List these threads in its file."""
        name = "tasks" if self.version == 1 else "cgroup.threads"
        (self.folder / name).write_text("".join(f"{each}\n" for each in threads))


@dataclass
class Root:
    """A root folder with a hierarchy of one version."""

    path: Path
    version: int

    def __post_init__(self) -> None:
        if self.version == 1:
            (self.path / "sys/fs/cgroup/cpuset").mkdir(parents=True)
        else:
            (self.path / "sys/fs/cgroup").mkdir(parents=True)
            (self.path / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory\n")

    def cgroup(self, path: str, cpus: str = "2-5", mems: str = "0", *, thread: int = 70) -> Cgroup:
        """Make a cgroup with one thread."""
        mount = "sys/fs/cgroup/cpuset" if self.version == 1 else "sys/fs/cgroup"
        folder = self.path / mount / path
        folder.mkdir(parents=True)
        cgroup = Cgroup(folder, self.version)
        cgroup.set("cpus", cpus)
        cgroup.set("mems", mems)
        if self.version == 2:
            (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        cgroup.hold(thread)
        self.thread(thread, cpus)
        return cgroup

    def thread(self, number: int, cpus: str, *, of: int | None = None, started: int = 500) -> None:
        """Make a thread, of a process of its own or of another's."""
        folder = self.path / f"proc/{number}"
        (folder / f"task/{number}").mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text(f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n")
        (folder / "stat").write_text(_STAT.format(number, started))
        if of is not None:
            (self.path / f"proc/{of}/task/{number}").mkdir()
