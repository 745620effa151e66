"""Block I/O classes: limits and weights of disks, by name.

The format is that of containerd's and CRI-O's file, so its content can be pasted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.settings import readers
from nri_policy.settings.section import Section

WEIGHTS = range(10, 1001)
Rate = Annotated[int | None, readers.rate]


class DeviceLimits(Section, frozen=True, kw_only=True):
    """The limits of a class for the disks that globs select; without globs, a weight for all."""

    devices: Annotated[tuple[Glob, ...], readers.globs] = field(name="Devices", default=())
    read_bps: Rate = field(name="ThrottleReadBps", default=None)
    write_bps: Rate = field(name="ThrottleWriteBps", default=None)
    read_iops: Rate = field(name="ThrottleReadIOPS", default=None)
    write_iops: Rate = field(name="ThrottleWriteIOPS", default=None)
    weight: Annotated[int | None, readers.integer_text] = field(name="Weight", default=None)

    @property
    def rates(self) -> dict[str, int]:
        """The limits, by their names in `io.max`."""
        rates = {
            "rbps": self.read_bps,
            "wbps": self.write_bps,
            "riops": self.read_iops,
            "wiops": self.write_iops,
        }
        return {key: value for key, value in rates.items() if value is not None}

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield what would have no effect, or the kernel would refuse."""
        if self.weight is not None and self.weight not in WEIGHTS:
            yield "Weight", f"{self.weight} is not from {WEIGHTS[0]} to {WEIGHTS[-1]}"
        if self.rates and not self.devices:
            yield "Devices", "a limit requires the devices that it is for"
        for glob in self.devices:
            if not glob.pattern.startswith("/dev/"):
                yield "Devices", f"{glob.pattern!r} does not begin with /dev/"


class BlockIOSettings(Section, frozen=True, kw_only=True):
    """Classes of block I/O; the runtime may know more."""

    enable: Annotated[bool, readers.flag] = False
    qos_is_default: Annotated[bool, readers.flag] = field(
        name="usePodQoSAsDefaultClass", default=False
    )
    classes: Mapping[str, tuple[DeviceLimits, ...]] = field(default_factory=dict)

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield names that are not allowed."""
        return readers.find_wrong_names("classes", self.classes)
