"""Settings: those in force (`config show`), and what is wrong with others (`config check`)."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.report.cpu_classes import CPUClassReport
from nri_policy.report.rdt import RDTShareReport
from nri_policy.settings import EffectiveSetting, ReloadResult


class SettingsReport(Struct, frozen=True, kw_only=True):
    """The settings in force."""

    latest_reload: ReloadResult | None
    origin: str  # the file or object that they come from
    notices: tuple[str, ...]
    settings: tuple[EffectiveSetting, ...]


class ErrorReport(Struct, frozen=True, kw_only=True):
    """Something that is wrong with settings."""

    path: str  # of the field
    text: str
    line: int | None
    column: int | None


class NodeCapacity(Struct, frozen=True, kw_only=True):
    """What a daemon would start with on a machine."""

    online: CPUSet
    reserved: CPUSet
    isolated: CPUSet
    sharable: CPUSet
    pools: int
    notes: tuple[str, ...]


class CheckReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether settings are good."""

    name: str = ""  # of the document, where the file has several
    valid: bool
    errors: tuple[ErrorReport, ...]
    notices: tuple[str, ...]
    settings: tuple[EffectiveSetting, ...]
    machine: NodeCapacity | None = None  # None if invalid, or checked without a machine
    cpu_classes: tuple[CPUClassReport, ...] = ()  # on the machine
    rdt: tuple[RDTShareReport, ...] = ()
