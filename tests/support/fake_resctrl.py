"""A resctrl file system, as strict as the kernel's `fs/resctrl` (spec classes.md §4).

The files are real ones below a folder. What changes them goes through `write`, `mkdir` and `rmdir`,
which refuse what the kernel refuses and set `info/last_cmd_status`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nri_policy.hardware.resctrl import RESCTRL
from nri_policy.tuning.files import KernelFiles

NO_LIMIT = (1 << 32) - 1
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")


class FakeGroups(KernelFiles):
    """The tuner's files, on this resctrl."""

    def __init__(self, root: Path, resctrl: FakeResctrl) -> None:
        super().__init__(root)
        self._resctrl = resctrl

    def make_group(self, path: Path) -> None:
        """Make a group as the kernel does; OSError."""
        self._resctrl.mkdir(path.name)

    def remove_group(self, path: Path) -> None:
        """Remove a group as the kernel does; OSError."""
        self._resctrl.rmdir(path.name)

    def store(self, path: Path, value: str) -> None:
        """Write as the kernel does; OSError."""
        self._resctrl.write(str(path.relative_to(self._resctrl.top)), value.encode())


class FakeResctrl:
    """A mounted resctrl."""

    def __init__(
        self,
        root: Path,
        *,
        caches: Mapping[str, int],
        ids: Iterable[int] = (0, 1),
        least: int = 1,
        closids: int = 8,
        way: int = 1 << 20,
        sparse: bool = False,
        bandwidth: tuple[int, int] | None = (10, 10),
        mbps: bool = False,
    ) -> None:
        """Mount it: *caches* are ways by resource; *bandwidth* is the least percent and step."""
        self.top = root / RESCTRL
        self.tasks: dict[int, str] = {}  # group by process
        self.exclusive: set[str] = set()
        self._caches, self._ids, self._least = caches, tuple(ids), least
        self._closids, self._way, self._sparse = closids, way, sparse
        self._bandwidth, self._mbps = bandwidth, mbps
        self._shares: dict[str, dict[str, dict[int, int]]] = {}
        for resource, ways in caches.items():
            self._put(f"info/{resource}/cbm_mask", f"{(1 << ways) - 1:x}")
            self._put(f"info/{resource}/min_cbm_bits", least)
            self._put(f"info/{resource}/num_closids", closids)
        if bandwidth is not None:
            self._put("info/MB/min_bandwidth", bandwidth[0])
            self._put("info/MB/bandwidth_gran", bandwidth[1])
            self._put("info/MB/num_closids", closids)
        self._put("info/last_cmd_status", "ok")
        self._make("")

    def _put(self, path: str, value: object) -> None:
        file = self.top / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def _make(self, group: str) -> None:
        """Give a new group all that is not exclusive to others."""
        shares: dict[str, dict[int, int]] = {}
        for resource, ways in self._caches.items():
            shares[resource] = {}
            for id_ in self._ids:
                taken = 0
                for each in self.exclusive:
                    taken |= self._shares[each][resource][id_]
                shares[resource][id_] = ((1 << ways) - 1) & ~taken
        if self._bandwidth is not None:
            shares["MB"] = dict.fromkeys(self._ids, NO_LIMIT if self._mbps else 100)
        self._shares[group] = shares
        self._put(f"{group}/tasks", "")
        self._show(group)

    def _show(self, group: str) -> None:
        width = max(map(len, self._shares[group]))
        lines, sizes = [], []
        for resource, shares in self._shares[group].items():
            form = "d" if resource == "MB" else "x"
            values = ";".join(f"{id_}={share:{form}}" for id_, share in shares.items())
            lines.append(f"{resource:>{width}}:{values}")
            if resource != "MB":
                size = (f"{id_}={each.bit_count() * self._way}" for id_, each in shares.items())
                sizes.append(f"{resource:>{width}}:{';'.join(size)}")
        self._put(f"{group}/schemata", "\n".join(lines))
        self._put(f"{group}/size", "\n".join(sizes))

    @property
    def status(self) -> str:
        """What the kernel says of the last write."""
        return (self.top / "info/last_cmd_status").read_text().strip()

    @contextmanager
    def _command(self) -> Iterator[None]:
        """Set the status by the outcome of what is done within the context."""
        self._put("info/last_cmd_status", "ok")
        try:
            yield
        except OSError as error:
            if error.filename:  # the text, which the kernel keeps apart
                self._put("info/last_cmd_status", error.filename)
            number = error.errno or 0
            raise OSError(number, os.strerror(number)) from None

    def mkdir(self, path: str) -> None:
        """Make a group."""
        if "/" in path.strip("/"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        with self._command():
            if "\n" in path:
                raise OSError(errno.EINVAL, "")
            if (self.top / path).exists():
                raise OSError(errno.EEXIST, "")
            if len(self._shares) == self._closids:
                raise OSError(errno.ENOSPC, "", "Out of CLOSIDs")
            self._make(path)

    def rmdir(self, path: str) -> None:
        """Remove a group; its processes go to the root group."""
        if not (self.top / path).exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path not in self._shares or not path:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        del self._shares[path]
        shutil.rmtree(self.top / path)
        for task, group in self.tasks.items():
            if group == path:
                self.tasks[task] = ""

    def write(self, path: str, data: bytes) -> int:
        """Write `schemata` or `tasks` of a group."""
        group, _, name = path.rpartition("/")
        if group not in self._shares or not (self.top / path).exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if name == "schemata":
            if not data.endswith(b"\n"):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            with self._command():
                self._write_schemata(group, data.decode())
        elif name == "tasks":
            with self._command():
                self._write_tasks(group, data.decode())
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return len(data)

    def _write_tasks(self, group: str, text: str) -> None:
        for word in text.strip().split(","):
            if not word.strip().isdecimal():
                raise OSError(errno.EINVAL, "", f"Task list parsing error pid {word}")
            if int(word) not in self.tasks:
                raise OSError(errno.ESRCH, "", f"No task {int(word)}")
            self.tasks[int(word)] = group

    def _write_schemata(self, group: str, text: str) -> None:
        staged: dict[str, dict[int, int]] = {}
        for line in text.splitlines():
            name, colon, values = line.partition(":")
            name = name.strip()
            if not colon:
                raise OSError(errno.EINVAL, "", "Missing ':'")
            if not values:
                raise OSError(errno.EINVAL, "", f"Missing '{name}' value")
            if name not in self._shares[group]:
                unknown = f"Unknown or unsupported resource name '{name}'"
                raise OSError(errno.EINVAL, "", unknown)
            staged[name] = self._parse(group, name, values)
        for name, shares in staged.items():
            self._shares[group][name].update(shares)
        self._show(group)

    def _parse(self, group: str, resource: str, values: str) -> dict[int, int]:
        staged: dict[int, int] = {}
        for part in values.split(";"):
            id_, equals, value = part.partition("=")
            if not equals or not id_.strip().isdecimal():
                raise OSError(errno.EINVAL, "", "Missing '=' or non-numeric domain")
            if int(id_) not in self._ids:
                raise OSError(errno.EINVAL, "")
            if int(id_) in staged:
                raise OSError(errno.EINVAL, "", f"Duplicate domain {int(id_)}")
            read = self._bandwidth_of if resource == "MB" else self._mask_of
            staged[int(id_)] = read(group, resource, int(id_), value.strip())
        return staged

    def _bandwidth_of(self, _group: str, _resource: str, _id: int, value: str) -> int:
        assert self._bandwidth is not None
        if not value.isdecimal() or int(value) > NO_LIMIT:
            raise OSError(errno.EINVAL, "", f"Invalid MB value {value}")
        least, step = self._bandwidth
        if self._mbps:
            return int(value)
        if not least <= int(value) <= 100:
            raise OSError(errno.EINVAL, "", f"MB value {value} out of range [{least},100]")
        return -(-int(value) // step) * step

    def _mask_of(self, group: str, resource: str, id_: int, value: str) -> int:
        if not _HEX.fullmatch(value):
            raise OSError(errno.EINVAL, "", f"Non-hex character in the mask {value}")
        mask = int(value, 16)
        if not 0 < mask < 1 << self._caches[resource]:
            raise OSError(errno.EINVAL, "", "Mask out of range")
        if "0" in f"{mask:b}".strip("0") and not self._sparse:
            text = f"The mask {mask:x} has non-consecutive 1-bits"
            raise OSError(errno.EINVAL, "", text)
        if mask.bit_count() < self._least:
            raise OSError(errno.EINVAL, "", f"Need at least {self._least} bits in the mask")
        for other in self.exclusive - {group}:
            if mask & self._shares[other][resource][id_]:
                raise OSError(errno.EINVAL, "", "Overlaps with exclusive group")
        return mask
