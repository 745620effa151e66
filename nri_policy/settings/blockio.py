"""Block I/O classes: limits and weights of disks, by a name.

In the form of the file that containerd and CRI-O have for them, so that it can be pasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.settings import values
from nri_policy.settings.section import Section

WEIGHTS = range(10, 1001)
Rate = Annotated[int | None, values.rate]


class DeviceLimits(Section, frozen=True, kw_only=True):
    """What one class sets for the disks that globs name; without globs it is a weight for all."""

    devices: Annotated[tuple[Glob, ...], values.globs] = field(name="Devices", default=())
    read_bps: Rate = field(name="ThrottleReadBps", default=None)
    write_bps: Rate = field(name="ThrottleWriteBps", default=None)
    read_iops: Rate = field(name="ThrottleReadIOPS", default=None)
    write_iops: Rate = field(name="ThrottleWriteIOPS", default=None)
    weight: Annotated[int | None, values.integer_text] = field(name="Weight", default=None)

    @property
    def rates(self) -> dict[str, int]:
        """The limits as `io.max` has them."""
        rates = {
            "rbps": self.read_bps,
            "wbps": self.write_bps,
            "riops": self.read_iops,
            "wiops": self.write_iops,
        }
        return {key: value for key, value in rates.items() if value is not None}

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield what would have no effect, or be refused."""
        if self.weight is not None and self.weight not in WEIGHTS:
            yield "Weight", f"{self.weight} is not from {WEIGHTS[0]} to {WEIGHTS[-1]}"
        if self.rates and not self.devices:
            yield "Devices", "a limit requires the devices that it is for"
        for glob in self.devices:
            if not glob.pattern.startswith("/dev/"):
                yield "Devices", f"{glob.pattern!r} does not begin with /dev/"


class BlockIO(Section, frozen=True, kw_only=True):
    """Classes of block I/O: those here, and what else the runtime may know."""

    enable: Annotated[bool, values.flag] = False
    qos_is_default: Annotated[bool, values.flag] = field(
        name="usePodQoSAsDefaultClass", default=False
    )
    classes: Mapping[str, tuple[DeviceLimits, ...]] = field(default_factory=dict)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield names that classes cannot have."""
        return values.wrong_names("classes", self.classes)
