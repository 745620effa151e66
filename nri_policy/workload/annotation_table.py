"""The table of annotations: each key, what it accepts, what it steers, and what is said of it.

Every key has the three forms of `annotations`; a few have the deprecated fourth. What is not in the
table, and lies under our domain or one like it, gets a warning. docs/annotations.md has the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from nri_policy.wording import did_you_mean, quoted
from nri_policy.workload.annotation_values import (
    check_irq_affinity,
    check_rdt_class,
    read_boolean,
    read_class,
    read_cold_start,
    read_full_cores,
    read_hint_filter,
    read_hint_kinds,
    read_level,
    read_memory_kinds,
    read_priority,
)
from nri_policy.workload.annotations import DOMAIN, Found


class Annotation(Struct, frozen=True, kw_only=True):
    """A key that pods may have."""

    name: str
    steers: str  # field of Preferences
    read: Callable[[Found], Any]  # its value for that field; AnnotationError
    value: str  # what is accepted, in Markdown, as the next one
    help: str  # what it does
    deprecated_form: bool = False  # `DOMAIN/name` with a map of container name to value


ANNOTATIONS = (
    Annotation(
        name="prefer-isolated-cpus",
        steers="prefer_isolated",
        read=read_boolean,
        value="boolean",
        help=(
            "exclusive CPUs are taken from those that the kernel isolates (`isolcpus`), if "
            "there are enough for all of them"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="require-isolated-cpus",
        steers="require_isolated",
        read=read_boolean,
        value="boolean",
        help=(
            "the same, but without enough of them the container does not start. Of this and "
            "`prefer-isolated-cpus` the one with the tighter form decides, this one if they are"
            " equal"
        ),
    ),
    Annotation(
        name="prefer-shared-cpus",
        steers="prefer_shared",
        read=read_boolean,
        value="boolean",
        help=(
            "true: no exclusive CPUs, even where the request would get some. false: exclusive "
            "CPUs for the whole part of a request such as 2500m"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="prefer-reserved-cpus",
        steers="prefer_reserved",
        read=read_boolean,
        value="boolean",
        help="true: run on the reserved CPUs. false: do not, whatever the namespace",
        deprecated_form=True,
    ),
    Annotation(
        name="prefer-cpu-priority",
        steers="cpu_priority",
        read=read_priority,
        value="`high`, `normal`, `low`, `none`, `default`",
        help=(
            "which sort of CPUs exclusive ones are picked from, on machines with several. "
            "`none`: any. `default`: as the settings say"
        ),
    ),
    Annotation(
        name="full-cores",
        steers="full_cores",
        read=read_full_cores,
        value="`off`, `prefer`, `require`",
        help=(
            "whether its exclusive CPUs may be threads of cores that it shares with another "
            "container: `require` gives it whole cores, all their threads; `prefer` only where "
            "that takes no wider part of the machine. Else as the setting `fullCores` says"
        ),
    ),
    Annotation(
        name="hide-hyperthreads",
        steers="hide_hyperthreads",
        read=read_boolean,
        value="boolean",
        help="the container sees one thread of each core; its exclusive CPUs stay its own",
    ),
    Annotation(
        name="unlimited-burstable",
        steers="unlimited_burstable",
        read=read_level,
        value="`system`, `package`, `die`, `numa`, `l3cache`",
        help=(
            "how wide a part of the machine a Burstable container without a CPU limit should have"
        ),
    ),
    Annotation(
        name="cpu.preserve",
        steers="cpu_preserve",
        read=read_boolean,
        value="boolean",
        help="the policy leaves the container's CPUs and CPU shares alone",
    ),
    Annotation(
        name="static-cpus",
        steers="static_cpus",
        read=read_boolean,
        value="boolean",
        help="once placed, the container is never moved",
    ),
    Annotation(
        name="memory-type",
        steers="memory_kinds",
        read=read_memory_kinds,
        value="`dram`, `pmem`, `hbm`, `mixed`, separated by commas",
        help="kinds of memory to use; `mixed` is all three. Without it: `dram,pmem`",
        deprecated_form=True,
    ),
    Annotation(
        name="cold-start",
        steers="cold_start",
        read=read_cold_start,
        value="`duration: 60s`, up to `1h`",
        help="start on persistent memory only; DRAM is added when the time is over",
        deprecated_form=True,
    ),
    Annotation(
        name="memory.preserve",
        steers="memory_preserve",
        read=read_boolean,
        value="boolean",
        help="the policy leaves the container's memory nodes alone",
    ),
    Annotation(
        name="topologyhints",
        steers="hint_kinds",
        read=read_hint_kinds,
        value=(
            "boolean, or `mounts`, `devices`, `pod-resources`, `all`, `none`, separated by commas"
        ),
        help="which devices the container should be close to",
    ),
    Annotation(
        name="deny.topologyhints",
        steers="deny_hints",
        read=read_hint_filter,
        value="`{type: prefix, paths: [/dev/]}`",
        help="ignore these; `type: glob` takes globs",
    ),
    Annotation(
        name="allow.topologyhints",
        steers="allow_hints",
        read=read_hint_filter,
        value="the same",
        help="do not ignore these after all",
    ),
    Annotation(
        name="strict.topologyhints",
        steers="strict_hints",
        read=read_boolean,
        value="boolean",
        help=(
            "rather than far from a device, or with memory of another kind, the container does "
            "not start"
        ),
    ),
    Annotation(
        name="pick-resources-by-hints",
        steers="pick_by_hints",
        read=read_boolean,
        value="boolean",
        help="spread exclusive CPUs and memory over the places of the container's devices",
    ),
    Annotation(
        name="scheduling-class",
        steers="scheduling_class",
        read=read_class,
        value="name of a class",
        help=(
            "Linux scheduling policy, nice and I/O priority, as one of the setting"
            " `schedulingClasses` has them: [classes](classes.md)"
        ),
    ),
    Annotation(
        name="blockioclass",
        steers="blockio_class",
        read=read_class,
        value="name of a class",
        help=(
            "limits and weights of disks, as `control.blockio.classes` or the runtime has them:"
            " [classes](classes.md)"
        ),
    ),
)
BY_NAME = {each.name: each for each in ANNOTATIONS}
# What has no effect yet, and what checks its value; AnnotationError.
LATER: Mapping[str, Callable[[Found], object]] = {
    "cpu-class": read_class,
    "irq-affinity": check_irq_affinity,
    "rdtclass": check_rdt_class,
}
AFFINITIES = frozenset({"affinity", "anti-affinity"})  # `affinity` reads them
DEPRECATED = frozenset(each.name for each in ANNOTATIONS if each.deprecated_form)

_NAMES = frozenset({*BY_NAME, *LATER})
_SHOWN = 20  # warnings for one pod


def warnings(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each key under our domain, or one like it, that means nothing.

    Up to a bound.
    """
    return tuple(islice(_warnings(annotations), _SHOWN))


def _warnings(annotations: Mapping[str, str]) -> Iterator[str]:
    for key in annotations:
        prefix, slash, rest = key.partition("/")
        if prefix == DOMAIN:
            known, name = AFFINITIES | DEPRECATED, rest
        elif prefix.endswith(f".{DOMAIN}"):
            known, name = _NAMES, prefix.removesuffix(f".{DOMAIN}")
            addressed = not slash or rest == "pod" or rest.startswith("container.")
            if name in known and not addressed:
                yield f"annotation {quoted(key)}: {quoted(rest)} is neither pod nor container.NAME"
        else:
            yield from _elsewhere(key, prefix, rest)
            continue
        if name not in known:
            hint = did_you_mean(name, known)
            yield f"annotation {quoted(key)} is unknown: there is no {quoted(name)}{hint}"


def _elsewhere(key: str, prefix: str, rest: str) -> Iterator[str]:
    """Yield a warning about a key under another domain, if ours may have been meant."""
    names = [name for name in _NAMES if prefix.startswith(f"{name}.")]
    domains = [prefix.removeprefix(f"{name}.") for name in names]
    if rest in AFFINITIES | DEPRECATED:
        domains.append(prefix)
    for domain in domains:
        if hint := did_you_mean(domain, [DOMAIN]):
            yield f"annotation {quoted(key)} is not ours: its domain is {quoted(domain)}{hint}"
            return
