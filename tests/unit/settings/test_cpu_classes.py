"""CPU classes that no machine can have."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.settings import SettingsError, from_spec


def problems_of(**fields: Any) -> list[str]:
    """Return what is wrong with a class."""
    spec = {
        "reservedResources": {"cpu": 1},
        "cpuClasses": [{"name": "one", **fields}],
        "sharedPoolCPUClass": "one",
    }
    try:
        from_spec(spec, "here")
    except SettingsError as error:
        return [str(each).removeprefix("cpuClasses[0].") for each in error.problems]
    return []


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        ("2GHz", 2_000_000, ""),
        ("2GHz", "1999MHz", "2000000 is more than the maximum of 1999000"),
        ("min", "base", ""),
        ("turbo", "base", "turbo is more than the maximum of base"),
        ("turbo", "1GHz", ""),  # it depends on the machine
        (5_000_000, "min", ""),
    ],
)
def test_a_minimum_is_not_above_the_maximum(low: object, high: object, text: str) -> None:
    for name, fields in (
        ("minFreq", {"minFreq": low, "maxFreq": high}),
        ("uncoreMinFreq", {"uncoreMinFreq": low, "uncoreMaxFreq": high}),
    ):
        assert problems_of(**fields) == ([f"{name}: {text}"] if text else [])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2.9 ghz", 2_900_000),
        (" .5GHz ", 500_000),
        ("2900000K", 2_900_000),
        ("Turbo", "turbo"),
        (0, None),
        ("0", None),
        ("0GHz", None),
        ("", None),
    ],
)
def test_frequencies_are_read_as_nri_plugins_reads_them(
    written: object, read: str | int | None
) -> None:
    fields = {"minFreq": written, "uncoreMaxFreq": written, "pctPriority": "low"}
    classes = [{"name": "one", **fields, "pctMaxFreq": written}]
    spec = {"reservedResources": {"cpu": 1}, "cpuClasses": classes, "sharedPoolCPUClass": "one"}
    (one,) = from_spec(spec, "here").cpu_classes
    assert [one.min_freq, one.uncore_max_freq, one.pct_max_freq] == [read, read, read]


def test_the_kernel_accepts_preferences_of_0_to_255_and_one_with_the_governor_performance() -> None:
    name = "energyPerformancePreference"
    assert problems_of(**{name: 256}) == [f"{name}: 256 is not from 0 to 255"]
    assert not problems_of(**{name: 0}, freqGovernor="performance")
    assert not problems_of(**{name: 255}, freqGovernor="powersave")
    text = "with the governor performance the kernel accepts only 0"
    assert problems_of(**{name: 1}, freqGovernor="performance") == [f"{name}: 1: {text}"]


def test_a_priority_of_turbo_frequencies_is_given_in_one_way() -> None:
    assert problems_of(pctPriority="high", sstClosID=1) == [
        "sstClosID: it cannot be set beside pctPriority",
        "sstClosID: other classes have pctPriority: one of both",
    ]
    assert problems_of(pctMinFreq="1GHz", pctMaxFreq="2GHz") == [
        "pctMinFreq: it requires pctPriority",
        "pctMaxFreq: it requires pctPriority",
    ]
    assert not problems_of(pctPriority="high", pctMinFreq="1GHz", pctMaxFreq="2GHz")


def test_only_a_class_with_a_priority_is_published() -> None:
    text = "publishExtendedResource: it requires pctPriority or sstClosID"
    assert problems_of(publishExtendedResource=True) == [text]
    assert not problems_of(publishExtendedResource=True, pctPriority="low")
    assert not problems_of(publishExtendedResource=True, sstClosID=0)


def test_one_class_has_each_priority() -> None:
    classes = [{"name": name, "pctPriority": "high"} for name in ("one", "two")]
    spec = {"reservedResources": {"cpu": 1}, "cpuClasses": classes, "sharedPoolCPUClass": "one"}
    with pytest.raises(SettingsError, match=r"\[1\].pctPriority: another class is 'high' already"):
        from_spec(spec, "here")
