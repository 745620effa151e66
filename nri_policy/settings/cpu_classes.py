"""CPU classes: frequency, governor and idle states of CPUs, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.settings import readers
from nri_policy.settings.section import Section

Frequency = Annotated[str | int | None, readers.frequency]
KiloHertz = Annotated[int | None, readers.natural]
Names = Annotated[tuple[str, ...], readers.names]
Text = Annotated[str | None, readers.text]


PREFERENCES = range(256)
_SYMBOLS = ("min", "base", "turbo")  # lowest first


def _exceeds(low: str | int | None, high: str | int | None) -> bool:
    """Return whether a minimum is above a maximum on any CPU."""
    if isinstance(low, str) and isinstance(high, str):
        return _SYMBOLS.index(low) > _SYMBOLS.index(high)
    return isinstance(low, int) and isinstance(high, int) and low > high


class CPUClass(Section, frozen=True, kw_only=True):
    """A class of CPUs."""

    LATER = frozenset(
        {"pctMaxFreq", "pctMinFreq", "pctPriority", "publishExtendedResource", "sstClosID"}
    )

    name: Annotated[str, readers.class_name]
    min_freq: Frequency = field(name="minFreq", default=None)
    max_freq: Frequency = field(name="maxFreq", default=None)
    uncore_min_freq: Frequency = field(name="uncoreMinFreq", default=None)
    uncore_max_freq: Frequency = field(name="uncoreMaxFreq", default=None)
    epp: Annotated[int | None, readers.natural] = field(
        name="energyPerformancePreference", default=None
    )
    governor: Text = field(name="freqGovernor", default=None)
    disabled_cstates: Names = field(name="disabledCstates", default=())
    turbo_priority: Annotated[int, readers.natural] = field(name="turboPriority", default=0)
    pct_priority: Annotated[str | None, readers.OneOf(("high", "low"))] = field(
        name="pctPriority", default=None
    )
    sst_clos: Annotated[int | None, readers.natural] = field(name="sstClosID", default=None)
    pct_min_freq: Frequency = field(name="pctMinFreq", default=None)
    pct_max_freq: Frequency = field(name="pctMaxFreq", default=None)
    publish: Annotated[bool, readers.flag] = field(name="publishExtendedResource", default=False)
    optional: Annotated[bool, readers.flag] = False
    allowed_namespaces: Annotated[tuple[Glob, ...] | None, readers.globs] = field(
        name="allowedNamespaces", default=None
    )

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield contradictions, and what no kernel accepts."""
        for low, high, name in (
            (self.min_freq, self.max_freq, "minFreq"),
            (self.uncore_min_freq, self.uncore_max_freq, "uncoreMinFreq"),
        ):
            if _exceeds(low, high):
                yield name, f"{low} is more than the maximum of {high}"
        if self.epp is not None and self.epp not in PREFERENCES:
            text = f"{self.epp} is not from {PREFERENCES[0]} to {PREFERENCES[-1]}"
            yield "energyPerformancePreference", text
        elif self.epp and self.governor == "performance":
            text = f"{self.epp}: with the governor performance the kernel accepts only 0"
            yield "energyPerformancePreference", text
        managed, associated = self.pct_priority is not None, self.sst_clos is not None
        if managed and associated:
            yield "sstClosID", "it cannot be set beside pctPriority"
        if not managed:
            for name, value in (
                ("pctMinFreq", self.pct_min_freq),
                ("pctMaxFreq", self.pct_max_freq),
            ):
                if value is not None:
                    yield name, "it requires pctPriority"
        if self.publish and not (managed or associated):
            yield "publishExtendedResource", "it requires pctPriority or sstClosID"


class ControlledCPUClass(Section, frozen=True, kw_only=True):
    """A class in the form of other policies of nri-plugins."""

    min_freq: KiloHertz = field(name="minFreq", default=None)
    max_freq: KiloHertz = field(name="maxFreq", default=None)
    uncore_min_freq: KiloHertz = field(name="uncoreMinFreq", default=None)
    uncore_max_freq: KiloHertz = field(name="uncoreMaxFreq", default=None)
    epp: Annotated[int | None, readers.natural] = field(
        name="energyPerformancePreference", default=None
    )
    governor: Text = field(name="freqGovernor", default=None)
    disabled_cstates: Names = field(name="disabledCstates", default=())


class ControlCPU(Section, frozen=True, kw_only=True):
    """A part of nri-plugins' settings that its topology-aware policy ignores; use `cpuClasses`."""

    classes: Mapping[str, ControlledCPUClass] = field(default_factory=dict)


def find_contradictions(classes: tuple[CPUClass, ...]) -> Iterator[tuple[str, str]]:
    """Yield contradictions between classes."""
    managed = [each for each in classes if each.pct_priority is not None]
    for number, each in enumerate(classes):
        if each.sst_clos is not None and managed:
            yield f"cpuClasses[{number}].sstClosID", "other classes have pctPriority: one of both"
        earlier = [other.pct_priority for other in classes[:number]]
        if each.pct_priority is not None and each.pct_priority in earlier:
            text = f"another class is {each.pct_priority!r} already"
            yield f"cpuClasses[{number}].pctPriority", text
