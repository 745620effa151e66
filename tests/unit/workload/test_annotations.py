"""Warnings for keys under our domain that mean nothing."""

from __future__ import annotations

import pytest

from nri_policy.workload.annotation_table import AFFINITIES, BY_NAME, DEPRECATED, warnings

DOMAIN = "resource-policy.nri.io"


def test_known_keys_and_other_domains_give_no_warning() -> None:
    keys = [f"{key}.{DOMAIN}{scope}" for key in BY_NAME for scope in ("", "/pod")]
    keys += [f"{key}.{DOMAIN}/container.c0" for key in BY_NAME]
    keys += [f"{DOMAIN}/{key}" for key in AFFINITIES | DEPRECATED]
    keys += ["noderesource.dev/resources", "example.com/x", f"other{DOMAIN}/x", f"a/b.{DOMAIN}", ""]
    assert warnings(dict.fromkeys(keys, "")) == ()


@pytest.mark.parametrize(
    ("key", "warning"),
    [
        ("memory-typ.{}/pod", "there is no 'memory-typ'; did you mean 'memory-type'?"),
        ("zebra.{}", "there is no 'zebra'"),
        ("{}/afinity", "there is no 'afinity'; did you mean 'affinity'?"),
        ("{}", "there is no ''"),
        ("{}/cpu.preserve", "there is no 'cpu.preserve'"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(key: str, warning: str) -> None:
    full = key.format(DOMAIN)
    assert warnings({full: ""}) == (f"annotation {full!r} is unknown: {warning}",)


def test_an_unknown_scope_is_named() -> None:
    (warning,) = warnings({f"memory-type.{DOMAIN}/containr.c0": "dram"})
    assert warning.endswith("'containr.c0' is neither pod nor container.NAME")


def test_a_flood_of_unknown_keys_is_cut_short() -> None:
    keys = [f"{'x' * (n % 97)}{n}.{DOMAIN}" for n in range(100_000)]
    assert len(warnings(dict.fromkeys(keys, ""))) == 20


@pytest.mark.parametrize(
    ("key", "domain"),
    [
        ("memory-type.resource-policy.nri.oi/pod", "resource-policy.nri.oi"),
        ("cpu.preserve.resource-policy.nri.com", "resource-policy.nri.com"),
        ("memory-type.resource-policy.nri.io.pod", "resource-policy.nri.io.pod"),
        ("resources-policy.nri.io/affinity", "resources-policy.nri.io"),
        ("prefer-isolated-cpus.nri.io/pod", "nri.io"),
        (
            "prefer-isolated-cpus.cri-resource-manager.intel.com/pod",
            "cri-resource-manager.intel.com",
        ),
        ("cri-resource-manager.intel.com/affinity", "cri-resource-manager.intel.com"),
    ],
)
def test_a_known_key_under_a_domain_like_ours_is_named(key: str, domain: str) -> None:
    assert warnings({key: ""}) == (
        f"annotation {key!r} is not ours: its domain is {domain!r}; did you mean {DOMAIN!r}?",
    )
    assert warnings({f"memory-type.example.com/{key.partition('/')[2]}": ""}) == ()


def test_a_known_key_without_a_domain_is_named() -> None:
    (warning,) = warnings({"prefer-shared-cpus": "true"})
    assert warning.endswith(f"it has no domain; did you mean 'prefer-shared-cpus.{DOMAIN}'?")
    assert warnings({"shared-cpus": "true"}) == ()
    for scope in ("pod", "container.main"):
        (warning,) = warnings({f"cpu.preserve/{scope}": "true"})
        assert warning.endswith(f"it has no domain; did you mean 'cpu.preserve.{DOMAIN}/{scope}'?")
    (warning,) = warnings({"hide-hyperthread/pod": "true"})
    assert warning.endswith("it has no domain; did you mean 'hide-hyperthreads'?")
    for other in ("hide-hyperthreads/node", "team/pod", "affinity.io/pod"):
        assert warnings({other: ""}) == ()


def test_an_annotation_of_the_balloons_policy_is_to_be_removed() -> None:
    for key in (f"balloon.balloons.{DOMAIN}", f"balloon.balloons.{DOMAIN}/pod"):
        (warning,) = warnings({key: "quad"})
        assert warning.endswith("has no effect: there are no balloons here; remove it")
