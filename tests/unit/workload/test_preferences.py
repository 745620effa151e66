"""What annotations say about a container."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.foundation.glob import Glob
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import ExclusivePartitions, ExclusiveQuota, FullCores, Level, Priority
from nri_policy.workload.annotation_table import Preferences
from nri_policy.workload.annotation_values import (
    USUAL_HINTS,
    HintFilter,
    HintKind,
    InterruptChoice,
)
from nri_policy.workload.annotations import AnnotationError, Scope
from nri_policy.workload.preferences import preferences
from nri_policy.workload.requirements import Requirements

DOMAIN = "resource-policy.nri.io"
DRAM, PMEM, HBM = MemoryKind.DRAM, MemoryKind.PMEM, MemoryKind.HBM


def field_of(key: str, text: str, field: str) -> object:
    """Read one pod-wide annotation; nothing but *field* may come of it."""
    found = preferences({f"{key}.{DOMAIN}/pod": text}, "c0")
    value = getattr(found, field)
    assert replace(found, **{field: getattr(Preferences(), field)}) == Preferences()
    return value


def test_without_annotations_there_are_no_preferences() -> None:
    assert preferences({}, "c0") == Preferences()
    assert preferences({"example.com/x": "y"}, "c0") == Preferences()


@pytest.mark.parametrize(
    "annotation",
    [
        {f"cpu.preserve.{DOMAIN}": "true"},
        {f"cpu.preserve.{DOMAIN}/pod": "true"},
        {f"cpu.preserve.{DOMAIN}/container.c0": "true"},
        {f"{DOMAIN}/cold-start": "c0: {duration: 60s}"},
        {f"cpu-class.{DOMAIN}/pod": "fast"},
    ],
)
def test_it_makes_no_difference_how_many_other_annotations_there_are(
    annotation: dict[str, str],
) -> None:
    others = {f"example.com/{number}": "" for number in range(1000)}
    alone = preferences(annotation, "c0")
    assert alone != Preferences()
    assert preferences(others | annotation, "c0") == alone


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("prefer-isolated-cpus", "prefer_isolated"),
        ("prefer-shared-cpus", "prefer_shared"),
        ("prefer-reserved-cpus", "prefer_reserved"),
        ("hide-hyperthreads", "hide_hyperthreads"),
        ("static-cpus", "static_cpus"),
        ("cpu.preserve", "cpu_preserve"),
        ("memory.preserve", "memory_preserve"),
        ("strict.topologyhints", "strict_hints"),
        ("pick-resources-by-hints", "pick_by_hints"),
    ],
)
def test_booleans_are_those_of_go(key: str, field: str) -> None:
    for text in ("1", "t", "T", "TRUE", "true", "True"):
        assert field_of(key, text, field) is True
    for text in ("0", "f", "F", "FALSE", "false", "False"):
        assert field_of(key, text, field) is False
    for text in ("", "yes", "no", "on", "tRUE", " true", "true\n", "2"):
        with pytest.raises(AnnotationError, match="is not true or false"):
            field_of(key, text, field)


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("prefer-cpu-priority", "high", "cpu_priority", Priority.HIGH),
        ("prefer-cpu-priority", "none", "cpu_priority", Priority.NONE),
        ("prefer-cpu-priority", "default", "cpu_priority", None),
        ("full-cores", "require", "full_cores", FullCores.REQUIRE),
        ("exclusive-quota", "keep", "exclusive_quota", ExclusiveQuota.KEEP),
        ("exclusive-partition", "isolated", "exclusive_partition", ExclusivePartitions.ISOLATED),
        ("unlimited-burstable", "l3cache", "unlimited_burstable", Level.L3CACHE),
        ("unlimited-burstable", "socket", "unlimited_burstable", Level.PACKAGE),
        ("memory-type", "dram", "memory_kinds", {DRAM}),
        ("memory-type", "DRAM,Pmem", "memory_kinds", {DRAM, PMEM}),
        ("memory-type", "hbm, dram", "memory_kinds", {HBM, DRAM}),
        ("memory-type", "mixed", "memory_kinds", {DRAM, PMEM, HBM}),
        ("cold-start", "duration: 60s", "cold_start", 60),
        ("cold-start", "{duration: 1h}", "cold_start", 3600),
        ("cold-start", '{"duration": "250ms"}', "cold_start", 0.25),
        ("cold-start", "duration: 0", "cold_start", None),
        ("cold-start", "duration: 0s", "cold_start", None),
        ("topologyhints", "true", "hint_kinds", USUAL_HINTS),
        ("topologyhints", "all", "hint_kinds", USUAL_HINTS),
        ("topologyhints", "F", "hint_kinds", set()),
        ("topologyhints", "none", "hint_kinds", set()),
        (
            "topologyhints",
            "mounts, pod-resources",
            "hint_kinds",
            {HintKind.MOUNTS, HintKind.KUBELET_VOLUMES, HintKind.POD_RESOURCES},
        ),
        (
            "allow.topologyhints",
            "type: prefix\npaths: [/dev/, 'podresapi:nvidia.com/gpu']",
            "allow_hints",
            HintFilter(prefixes=("/dev/", "podresourceapi:nvidia.com/gpu")),
        ),
        ("deny.topologyhints", "paths: [/dev/]", "deny_hints", HintFilter(prefixes=("/dev/",))),
        (
            "irq-affinity",
            "{claim: [24, 'PCI-*'], mask: null, mode: claim-first}",
            "interrupts",
            InterruptChoice(
                key=f"irq-affinity.{DOMAIN}/pod",
                scope=Scope.POD,
                claim=(24, "PCI-*"),
                claim_first=True,
            ),
        ),
        (
            "deny.topologyhints",
            "{type: glob, paths: ['/dev/sd*']}",
            "deny_hints",
            HintFilter(globs=(Glob.parse("/dev/sd*"),)),
        ),
    ],
)
def test_a_value_is_read_by_the_rules_of_its_key(
    key: str, text: str, field: str, value: object
) -> None:
    assert field_of(key, text, field) == value


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("prefer-cpu-priority", "High", "one of high, normal, low, none, default"),
        ("full-cores", "true", "one of off, prefer, require"),
        ("unlimited-burstable", "core", "one of system, package, die, numa, l3cache"),
        ("memory-type", "", "a comma-separated list of dram, pmem, hbm, mixed"),
        ("memory-type", "dram,,pmem", "a comma-separated list of dram, pmem, hbm, mixed"),
        ("memory-type", "dram," * 1000, "a comma-separated list of dram"),
        ("scheduling-class", "a b", "the name of a class: 1 to 64 of letters, digits"),
        ("topologyhints", "disks", "true, false, or a comma-separated list of mounts, devices"),
        ("cold-start", "60s", "a map such as duration: 60s"),
        ("cold-start", "duration: 60", "a map such as .* .'60' is not a duration"),
        ("cold-start", "duration: 61m", "a map such as duration: 60s, from 0s to 1h"),
        ("cold-start", "duration: -1s", "a map such as .* .'-1s' is negative"),
        ("cold-start", "duration: 1s\nx: 1", "a map such as duration: 60s"),
        ("cold-start", "duration: [", "a map such as .* .line 2"),
        ("irq-affinity", "{claim: [24], masks: [25]}", "isolate, sink, or a map such as"),
        ("irq-affinity", "mode: masks-first", "isolate, sink, or a map such as"),
        ("irq-affinity", "claim: 0", "isolate, sink, or a map such as"),
        ("irq-affinity", "mask: ''", "isolate, sink, or a map such as"),
        ("irq-affinity", "claim: [1.5]", "isolate, sink, or a map such as .*1.5 is not a glob"),
        ("irq-affinity", "mask: ['[']", "isolate, sink, or a map such as .* is not a glob"),
        ("allow.topologyhints", "paths: [1]", "a map such as {type: prefix"),
        ("allow.topologyhints", "type: prefix", "a map such as {type: prefix"),
        ("allow.topologyhints", "{type: regexp, paths: []}", "a map such as {type: prefix"),
        ("allow.topologyhints", "{type: [], paths: []}", "a map such as {type: prefix"),
        ("allow.topologyhints", "{type: prefix, paths: [1]}", "a map such as {type: prefix"),
        ("deny.topologyhints", "{type: prefix, paths: /dev}", "a map such as {type: prefix"),
        ("deny.topologyhints", f"{{type: glob, paths: [{'a*b,' * 300}]}}", "a map such as .*256"),
        ("deny.topologyhints", "{type: glob, paths: ['[']}", "a map such as .* is not a glob"),
        ("deny.topologyhints", "x" * 100_000, "a map such as .* .the text is longer than 32768"),
    ],
)
def test_an_error_names_the_annotation_its_text_and_what_is_allowed(
    key: str, text: str, allowed: str
) -> None:
    full = f"{key}.{DOMAIN}/container.c0"
    with pytest.raises(AnnotationError, match=f"^annotation {full}: .* is not {allowed}") as caught:
        preferences({full: text}, "c0")
    assert caught.value.key == full
    assert caught.value.text == text
    assert len(str(caught.value)) < 400


def test_the_tightest_scope_decides() -> None:
    annotations = {
        f"prefer-shared-cpus.{DOMAIN}": "true",
        f"prefer-shared-cpus.{DOMAIN}/pod": "false",
        f"prefer-shared-cpus.{DOMAIN}/container.c0": "true",
    }
    assert preferences(annotations, "c0").prefer_shared is True
    assert preferences(annotations, "c1").prefer_shared is False
    del annotations[f"prefer-shared-cpus.{DOMAIN}/pod"]
    assert preferences(annotations, "c1").prefer_shared is True


def test_an_annotation_that_is_not_in_force_hurts_no_one() -> None:
    annotations = {
        f"prefer-shared-cpus.{DOMAIN}": "maybe",
        f"prefer-shared-cpus.{DOMAIN}/container.other": "maybe",
        f"prefer-shared-cpus.{DOMAIN}/container.c0": "true",
    }
    assert preferences(annotations, "c0").prefer_shared is True
    with pytest.raises(AnnotationError):
        preferences(annotations, "other")
    with pytest.raises(AnnotationError):
        preferences(annotations, "c1")


@pytest.mark.parametrize(
    ("prefer", "require", "outcome"),
    [
        ((None, ""), (None, ""), (None, False)),
        (("true", ""), (None, ""), (True, False)),
        (("false", ""), (None, ""), (False, False)),
        ((None, ""), ("true", ""), (True, True)),
        ((None, ""), ("false", ""), (False, False)),
        (("false", "/pod"), ("true", "/pod"), (True, True)),
        (("true", "/pod"), ("false", "/pod"), (False, False)),
        (("true", "/pod"), ("true", ""), (True, False)),
        (("false", "/container.c0"), ("true", "/pod"), (False, False)),
        (("false", ""), ("true", "/pod"), (True, True)),
        (("maybe", ""), ("true", "/pod"), (True, True)),
    ],
)
def test_of_preferred_and_required_isolation_the_tighter_decides(
    prefer: tuple[str | None, str],
    require: tuple[str | None, str],
    outcome: tuple[bool | None, bool],
) -> None:
    annotations = {
        f"{key}-isolated-cpus.{DOMAIN}{scope}": text
        for key, (text, scope) in (("prefer", prefer), ("require", require))
        if text is not None
    }
    found = preferences(annotations, "c0")
    assert (found.prefer_isolated, found.require_isolated) == outcome


def test_the_deprecated_map_is_read_with_a_notice() -> None:
    annotations = {
        f"{DOMAIN}/memory-type": "c0: dram,pmem\nc1: disk",
        f"{DOMAIN}/cold-start": "c0: {duration: 60s}",
        f"{DOMAIN}/prefer-shared-cpus": 'c0: "true"\nc2: false',
        f"{DOMAIN}/prefer-isolated-cpus": "c0: false",
        f"{DOMAIN}/prefer-reserved-cpus": "c0: true",
    }
    found = preferences(annotations, "c0")
    assert replace(found, notices=()) == Preferences(
        memory_kinds=frozenset({DRAM, PMEM}),
        cold_start=60,
        prefer_shared=True,
        prefer_isolated=False,
        prefer_reserved=True,
    )
    assert len(found.notices) == 5
    assert (
        f"annotation {DOMAIN}/memory-type: this form is deprecated;"
        f" use memory-type.{DOMAIN}/container.c0" in found.notices
    )
    assert preferences(annotations, "c3") == Preferences()
    with pytest.raises(AnnotationError, match=f"^annotation {DOMAIN}/memory-type: 'disk' is not"):
        preferences(annotations, "c1")


def test_the_deprecated_map_counts_only_where_no_other_form_is_given() -> None:
    annotations = {
        f"{DOMAIN}/prefer-shared-cpus": "c0: true",
        f"prefer-shared-cpus.{DOMAIN}": "false",
    }
    assert preferences(annotations, "c0") == Preferences(prefer_shared=False)


@pytest.mark.parametrize("text", ["true", "[c0]", "c0: [", "c0: 1\nc0: 2"])
def test_a_deprecated_annotation_must_be_a_map(text: str) -> None:
    with pytest.raises(AnnotationError, match="is not a map of container name to value"):
        preferences({f"{DOMAIN}/prefer-shared-cpus": text}, "c9")


def test_exact_requirements_are_part_of_the_preferences() -> None:
    text = '{"containers": {"c0": {"limits": {"cpu": "1500m"}}}}'
    found = preferences({"noderesource.dev/resources": text}, "c0")
    assert found == Preferences(requirements=Requirements(cpu_limit=1500))


@pytest.mark.parametrize(
    ("source", "matches"),
    [
        ("/dev/sda", True),
        ("/srv/a", True),
        ("/srv/a/b", False),
        ("podresourceapi:x/gpu", True),
        ("/home", False),
    ],
)
def test_a_hint_filter_matches_prefixes_and_globs(source: str, matches: bool) -> None:
    hints = HintFilter(prefixes=("/dev/", "podresourceapi:x/"), globs=(Glob.parse("/srv/*"),))
    assert hints.matches(source) is matches
    assert not HintFilter().matches(source)


def test_all_values_that_are_not_accepted_are_named_up_to_a_bound() -> None:
    wrong = {
        "static-cpus": "yes",
        "hide-hyperthreads": "TRUE ",
        "topologyhints": "gpu",
        "prefer-isolated-cpus": "on",
        "prefer-cpu-priority": "fast",
        "memory-type": "ram",
        "cold-start": "soon",
    }
    annotations = {f"{key}.{DOMAIN}": text for key, text in wrong.items()}
    with pytest.raises(AnnotationError) as error:
        preferences(dict([*annotations.items()][:2]), "c0")
    assert str(error.value).split("; ") == [
        f"annotation hide-hyperthreads.{DOMAIN}: 'TRUE ' is not true or false",
        f"annotation static-cpus.{DOMAIN}: 'yes' is not true or false",
    ]
    with pytest.raises(AnnotationError) as error:
        preferences(annotations, "c0")
    assert len(error.value.others) == 6
    assert str(error.value).count("annotation ") == 5
    assert str(error.value).endswith("; and 2 more")
