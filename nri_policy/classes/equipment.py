"""Equipment: what of a node classes rest on, beside its CPUs and memory."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.hardware.disks import Disk


class Equipment(Struct, frozen=True, kw_only=True):
    """What the runtime and the kernel can do.

    A text says why they cannot, for people; an empty one that they can, as far as is known.
    """

    no_scheduler: str = ""  # policy, nice, flags
    no_io_priority: str = ""
    no_realtime: str = ""  # policies fifo and rr
    no_io_limits: str = ""  # of disks
    no_io_updates: str = ""  # to the limits of a container that exists
    one_disk: str = ""  # only one can be limited
    weights: tuple[str, ...] = ()  # the files for weights of I/O that cgroups have
    disks: tuple[Disk, ...] = ()
