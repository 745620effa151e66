"""Every field of the topology-aware policy of nri-plugins (August 2026) is read, and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.settings import SettingsError, from_spec

PROJECT = Path(__file__).parents[3]
CPU_CLASS: dict[str, Any] = {"name": "turbo"}
SCHEDULING_CLASS: dict[str, Any] = {"name": "calm"}

# path: a value that the peer's schema takes, and one of the right type that means nothing or one of
# another type; `[]` is an entry of a list, `*` one of a map
FIELDS: dict[str, tuple[Any, Any]] = {
    "agent.nodeResourceTopology": (False, "no"),
    "agent.podResourceAPI": (True, 1),
    "availableResources.*": ("cpuset:0-3", "cpuset:x"),
    "colocateNamespaces": (True, "yes"),
    "colocatePods": (True, "yes"),
    "control.blockio.enable": (True, "yes"),
    "control.blockio.usePodQoSAsDefaultClass": (True, "yes"),
    "control.cpu.classes.*.disabledCstates[]": ("C6", 6),
    "control.cpu.classes.*.energyPerformancePreference": (128, "fast"),
    "control.cpu.classes.*.freqGovernor": ("powersave", 1),
    "control.cpu.classes.*.maxFreq": (3_200_000, "fast"),
    "control.cpu.classes.*.minFreq": (800_000, -1),
    "control.cpu.classes.*.uncoreMaxFreq": (2_400_000, True),
    "control.cpu.classes.*.uncoreMinFreq": (800_000, 1.5),
    "control.rdt.enable": (True, 1),
    "control.rdt.force": (True, 1),
    "control.rdt.options.l2.optional": (True, 1),
    "control.rdt.options.l3.optional": (True, 1),
    "control.rdt.options.mb.optional": (True, 1),
    "control.rdt.partitions.*.classes.*.l2Allocation.*": ({"unified": "50-60%"}, {"code": "50%"}),
    "control.rdt.partitions.*.classes.*.l3Allocation.*": ({"unified": "0-5"}, {"unified": "5-0"}),
    "control.rdt.partitions.*.classes.*.mbAllocation.*": (["50%", "1000MBps"], ["50"]),
    "control.rdt.partitions.*.l2Allocation.*": (
        {"unified": "0xff0", "code": "50%", "data": "50%"},
        {"unified": "0xf0f"},
    ),
    "control.rdt.partitions.*.l3Allocation.*": ({"unified": "100%"}, {"unified": "101%"}),
    "control.rdt.partitions.*.mbAllocation.*": (["50%"], "50%"),
    "control.rdt.usePodQoSAsDefaultClass": (True, 1),
    "controllableInterrupts[]": ("PCI-MSIX-*", "["),
    "cpuClasses[].disabledCstates[]": ("C6", 6),
    "cpuClasses[].energyPerformancePreference": (128, -1),
    "cpuClasses[].freqGovernor": ("performance", 1),
    "cpuClasses[].maxFreq": ("turbo", "torbo"),
    "cpuClasses[].minFreq": ("2.9GHz", "2.9 THz"),
    "cpuClasses[].name": ("turbo", "a b"),
    "cpuClasses[].pctMaxFreq": ("3GHz", "fast"),
    "cpuClasses[].pctMinFreq": ("1000MHz", "slow"),
    "cpuClasses[].pctPriority": ("high", "higher"),
    "cpuClasses[].publishExtendedResource": (True, 1),
    "cpuClasses[].sstClosID": (2, -1),
    "cpuClasses[].turboPriority": (3, -1),
    "cpuClasses[].uncoreMaxFreq": ("2400000kHz", "x"),
    "cpuClasses[].uncoreMinFreq": ("base", True),
    "defaultCPUPriority": ("high", "highest"),
    "defaultExclusiveCPUClass": ("turbo", "torbo"),
    "instrumentation.httpEndpoint": (":8891", "8891"),
    "instrumentation.logExportPeriod": ("5s", 5),
    "instrumentation.logExporter": ("otlp-grpc", "otlp"),
    "instrumentation.metrics.enabled[]": ("policy", "["),
    "instrumentation.metrics.polled[]": ("buildinfo", 1),
    "instrumentation.metricsExporter": ("prometheus", "statsd"),
    "instrumentation.prometheusExport": (True, 1),
    "instrumentation.reportPeriod": ("30s", "30"),
    "instrumentation.samplingRatePerMillion": (1000, -1),
    "instrumentation.tracingCollector": ("otlp-http", "jaeger"),
    "log.debug[]": ("*", 1),
    "log.klog.add_dir_header": (True, "yes"),
    "log.klog.alsologtostderr": (True, "yes"),
    "log.klog.alsologtostderrthreshold": ("INFO", 1),
    "log.klog.legacy_stderr_threshold_behavior": (True, "yes"),
    "log.klog.log_backtrace_at": ("file:10", 1),
    "log.klog.log_dir": ("/var/log", 1),
    "log.klog.log_file": ("x.log", 1),
    "log.klog.log_file_max_size": (1800, "big"),
    "log.klog.logtostderr": (True, "yes"),
    "log.klog.one_output": (True, "yes"),
    "log.klog.skip_headers": (True, "yes"),
    "log.klog.skip_log_headers": (True, "yes"),
    "log.klog.stderrthreshold": ("ERROR", 1),
    "log.klog.v": (4, "4"),
    "log.klog.vmodule": ("x=2", 1),
    "log.source": (True, "yes"),
    "namespaceSchedulingClasses.*": ("calm", "clam"),
    "pinCPU": (False, "no"),
    "pinMemory": (False, "no"),
    "podQoSSchedulingClasses.BestEffort": ("calm", "clam"),
    "preferIsolatedCPUs": (False, "no"),
    "preferSharedCPUs": (True, "yes"),
    "reservedPoolCPUClass": ("turbo", "torbo"),
    "reservedPoolNamespaces[]": ("kube-*", "["),
    "reservedResources.*": ("cpuset:0", "cpuset:x"),
    "schedulingClasses[].deadline": (5_000_000, "soon"),
    "schedulingClasses[].flags[]": ("reset-on-fork", "reset"),
    "schedulingClasses[].ioClass": ("idle", "best-effort"),
    "schedulingClasses[].ioPriority": (7, 8),
    "schedulingClasses[].name": ("calm", ""),
    "schedulingClasses[].nice": (19, 20),
    "schedulingClasses[].period": (10_000_000, 1.5),
    "schedulingClasses[].policy": ("batch", "nonsense"),
    "schedulingClasses[].priority": (99, 100),
    "schedulingClasses[].runtime": (1_000_000, -1),
    "sharedPoolCPUClass": ("turbo", "torbo"),
    "unlimitedBurstable": ("die", "core"),
}
# what a field has beside it
BESIDE: dict[str, dict[str, Any]] = {
    "schedulingClasses[].priority": {"policy": "fifo"},
    "schedulingClasses[].ioPriority": {"ioClass": "be"},
    "cpuClasses[].pctMaxFreq": {"pctPriority": "high"},
    "cpuClasses[].pctMinFreq": {"pctPriority": "high"},
    "cpuClasses[].publishExtendedResource": {"sstClosID": 1},
    **{
        f"schedulingClasses[].{name}": {
            "policy": "deadline",
            "runtime": 1_000_000,
            "deadline": 5_000_000,
            "flags": ["reset-on-fork"],
        }
        for name in ("runtime", "deadline", "period")
    },
}


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """Return settings with one field of the peer's, and what that requires."""
    made = value
    *above, last = path.split(".")
    for part in (last, *reversed(above)):
        name = part.removesuffix("[]").replace("*", "cpu" if "Resources" in path else "all")
        made = {name: [made] if part.endswith("[]") else made}
        if part == last:
            made |= {k: v for k, v in BESIDE.get(path, {}).items() if k != name}
    spec: dict[str, Any] = {"reservedResources": {"cpu": 1}, **made}
    classes = spec.setdefault("cpuClasses", [CPU_CLASS] if "CPUClass" in path else [])
    for each in [*classes, *spec.get("schedulingClasses", [])]:
        each.setdefault("name", "one")
    if classes:
        spec.setdefault("sharedPoolCPUClass", classes[0]["name"])
    spec.setdefault("schedulingClasses", [SCHEDULING_CLASS])
    return spec


def only_ours(schema: dict[str, Any], peers: Iterable[str], above: str = "") -> Iterator[str]:
    """Yield the paths of fields that the peer does not have, nor anything below them."""
    for name, field in schema.get("properties", {}).items():
        entry = field.get("items", {})
        path = f"{above}{name}{'[]' if 'properties' in entry else ''}"
        at = f"{re.escape(path)}([.[]|$)|{re.escape(above)}\\*"
        if within := [each for each in peers if re.match(at, each)]:
            yield from only_ours(entry or field, within, f"{path}.")
        else:
            yield path


def test_the_way_back_names_every_field_that_the_peer_does_not_have() -> None:
    (crd,) = yaml.safe_load_all((PROJECT / "configs/kubernetes/settings-crd.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    page = (PROJECT / "docs/migration.md").read_text()
    listed = page.partition("Remove the fields that only nri-policy has:")[2].partition(". (")[0]
    assert sorted(re.findall("`(.*?)`", listed)) == sorted(only_ours(schema, FIELDS))


@pytest.mark.parametrize("path", FIELDS)
def test_a_field_of_the_peer_is_taken(path: str) -> None:
    from_spec(spec_with(path, FIELDS[path][0]), "here")


@pytest.mark.parametrize("path", FIELDS)
def test_nonsense_in_a_field_of_the_peer_is_refused(path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_spec(spec_with(path, FIELDS[path][1]), "here")
    first = path.split(".", maxsplit=1)[0].removesuffix("[]")
    assert {
        problem.path.partition(".")[0].partition("[")[0] for problem in caught.value.problems
    } <= {
        first,
        "sharedPoolCPUClass",  # which names the class that is wrong
    }
