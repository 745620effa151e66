"""Claims in manifests that `what-if` tries: their allocations, and which pods would be refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from nri_policy.dra.hypothetical import DEVICE_CLASS, allocator
from nri_policy.dra.resource_slice import CPU
from nri_policy.engine.event import Prepared
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.manifest_pods import ContainerFactory, parse_manifests
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.node import WhatIf, WhatIfResult
from nri_policy.plugin.convert import container_of
from nri_policy.workload.claim import DRIVER
from tests.support.claims import part
from tests.support.daemon import pod
from tests.support.engine_driver import EngineDriver

# of 4 NUMA nodes of 4 CPUs; CPU 0 is reserved
FACTORY = ContainerFactory(
    kubelet=Kubelet(), convert=container_of, exact=False, allocator=allocator
)
ON: dict[str, Any] = {"dra": {"enabled": True}}
DOMAIN = "resource.kubernetes.io"


def exactly(amount: str = "", class_: str = DEVICE_CLASS, **more: Any) -> dict[str, Any]:
    capacity = {"capacity": {"requests": {CPU: amount}}} if amount else {}
    return {"deviceClassName": class_, **capacity, **more}


def claim(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a ResourceClaim."""
    spec = {"devices": {"requests": [*requests], **more}}
    return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def template(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaimTemplate."""
    made = claim(name, *requests)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def user(name: str, *, claim: str = "", template: str = "", request: str = "") -> dict[str, Any]:
    """Return a pod whose container uses a claim."""
    made = pod(name, "")
    its = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    made["spec"]["resourceClaims"] = [{"name": "own", **its}]
    use = {"name": "own", **({"request": request} if request else {})}
    made["spec"]["containers"][0]["resources"] = {"claims": [use]}
    return made


def tried(driver: EngineDriver, *objects: dict[str, Any], replicas: int = 0) -> WhatIfResult:
    trial = WhatIf(driver.engine.fork())
    items = {"kind": "List", "items": [*objects]}
    for wanted in parse_manifests(json.dumps(items), replicas, FACTORY).pods:
        for _ in trial.run(wanted):
            pass
    return trial.result()


def cpus(result: WhatIfResult, name: str = "web") -> CPUSet:
    holding = result.newcomers[f"default/{name}/main"].holding
    assert holding is not None
    return holding.placed.grant.claimed


def test_the_first_device_with_room_is_taken() -> None:
    node = EngineDriver(**ON)
    own = claim("own", {"name": "cpu", "exactly": exactly("2")})
    assert str(cpus(tried(node, own, user("web", claim="own")))) == "2-3"
    node.handle(Prepared(parts=(part(2000, 0),)))
    assert str(cpus(tried(node, user("web", claim="own"), own))) == "4-5"
    assert not [each for each in node.engine.state.claims if "what-if" in each], "only tried"


def test_every_pod_of_a_template_has_a_claim_of_its_own_until_no_device_has_room() -> None:
    own = template("own", {"name": "cpu", "exactly": exactly("3")})
    result = tried(EngineDriver(**ON), own, user("web", template="own"), replicas=5)
    assert (result.fits, result.fits_by_pod[0].fit) == (False, 4)
    assert [str(cpus(result, f"web-{n}")) for n in (1, 2, 3, 4)] == ["1-3", "4-6", "8-10", "12-14"]
    refusal = result.newcomers["default/web-5/main"].refusal
    assert refusal == (
        "claim default/web-5-own (cpu): no device has 3 CPUs left:"
        " numa0 has 0, numa1 has 1, numa2 has 1, numa3 has 1"
    )


def test_a_claim_of_several_pods_is_refused() -> None:
    own = claim("own", {"name": "cpu", "exactly": exactly()})
    result = tried(EngineDriver(**ON), own, user("web", claim="own"), replicas=2)
    refusal = result.newcomers["default/web-2/main"].refusal
    assert refusal == "claim default/own is shared by several pods"


def test_alternatives_and_counts_are_tried_in_order() -> None:
    alternatives = [exactly("9", name="much"), exactly("1", name="little", count=2)]
    own = claim(
        "own",
        {"name": "near", "exactly": exactly("4")},
        {"name": "cpu", "firstAvailable": alternatives},
    )
    result = tried(EngineDriver(**ON), own, user("web", claim="own", request="cpu"))
    assert str(cpus(result)) == "1,8", "numa1 is near's alone"


def test_what_is_not_evaluated_is_said() -> None:
    gpu = {"name": "gpu", "exactly": exactly(class_="gpu.example.com")}
    near = [{"matchAttribute": f"{DOMAIN}/numaNode"}]
    own = claim("own", {"name": "cpu", "exactly": exactly("2")}, gpu, constraints=near)
    result = tried(EngineDriver(**ON), own, user("web", claim="own"))
    assert str(cpus(result)) == "2-3"
    assert {each.partition(":")[0] for each in result.warnings} == {
        "not all selectors and constraints of the claim own were evaluated",
        "the devices of resource claims were ignored",
        "default/web/main",  # it requests less than its claim
    }
    (warning,) = tried(EngineDriver(**ON), claim("own", gpu), user("web", claim="own")).warnings
    assert warning.startswith("the devices of resource claims were ignored: own: ")


def on_node(number: int) -> dict[str, Any]:
    """Return selectors for one NUMA node."""
    text = f"device.driver == '{DRIVER}' && device.attributes['{DOMAIN}'].numaNode == {number}"
    return {"selectors": [{"cel": {"expression": text}}]}


def test_selectors_that_compare_attributes_choose_the_device() -> None:
    own = claim("own", {"name": "cpu", "exactly": exactly("2", **on_node(2))})
    result = tried(EngineDriver(**ON), own, user("web", claim="own"))
    assert str(cpus(result)) == "8-9"
    much = claim("own", {"name": "cpu", "exactly": exactly("2", **on_node(7))})
    result = tried(EngineDriver(**ON), much, user("web", claim="own"))
    refusal = result.newcomers["default/web/main"].refusal
    assert refusal is not None
    assert "no device that its selectors and constraints allow has 2 CPUs left" in refusal


def test_a_selector_that_is_not_evaluated_is_said() -> None:
    expression = "device.capacity['placement.nri'].cpu > 3"
    odd: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    own = claim("own", {"name": "cpu", "exactly": exactly("2", **odd)})
    warnings = tried(EngineDriver(**ON), own, user("web", claim="own")).warnings
    assert any("the claim own were evaluated: kube-scheduler may choose" in w for w in warnings)


MATCH, DISTINCT = ({each: f"{DOMAIN}/numaNode"} for each in ("matchAttribute", "distinctAttribute"))
CONSTRAINTS = [
    ([MATCH], "4-6,7", "numa0 has room for the first alone"),
    ([DISTINCT], "1,4-6", "two NUMA nodes"),
    ([{**MATCH, "requests": ["big"]}], "1,4-6", "it is about one request"),
    ([{"matchAttribute": "placement.nri/unknown"}], "", "no device has it"),
    ([MATCH, DISTINCT], "", "both cannot be"),
]


@pytest.mark.parametrize(
    ("constraints", "expected", "_why"), CONSTRAINTS, ids=[each[2] for each in CONSTRAINTS]
)
def test_constraints_between_our_devices_are_kept(
    constraints: list[dict[str, Any]], expected: str, _why: str
) -> None:
    node = EngineDriver(**ON)
    node.handle(Prepared(parts=(part(2000, 0),)))  # one CPU of numa0 is left
    own = claim(
        "own",
        {"name": "small", "exactly": exactly("1")},
        {"name": "big", "exactly": exactly("3")},
        constraints=constraints,
    )
    result = tried(node, own, user("web", claim="own"))
    if not expected:
        assert not result.fits
        return
    assert cpus(result) == CPUSet.parse(expected)
    assert not any("evaluated" in each for each in result.warnings)


def test_a_claim_with_too_many_ways_is_given_up() -> None:
    pairs = [{"name": f"r{n}", "exactly": exactly("1m", count=2)} for n in range(16)]
    never = [{"matchAttribute": f"{DRIVER}/pool", "requests": ["r14", "r15"]}]
    own = claim("own", *pairs, constraints=never)
    result = tried(EngineDriver(**ON), own, user("web", claim="own"))
    refusal = result.newcomers["default/web/main"].refusal
    assert refusal == "claim default/own has too many ways to be allocated"


def test_without_the_driver_claims_are_ignored() -> None:
    own = claim("own", {"name": "cpu", "exactly": exactly("2")})
    result = tried(EngineDriver(), own, user("web", claim="own"))
    assert result.warnings == ("the claim own was ignored: dra.enabled is false",)
    assert result.fits


def test_amounts_are_whole_cores_where_these_are_required() -> None:
    node = EngineDriver(**ON, fullCores="require")
    own = claim("own", {"name": "cpu", "exactly": exactly("2500m")})
    assert len(cpus(tried(node, own, user("web", claim="own")))) == 4


BAD = [
    ({**claim("own"), "spec": {}}, "ResourceClaim own: devices.requests is missing"),
    ({"kind": "ResourceClaimTemplate"}, "metadata is missing"),
    (claim("own", {"name": "a", "exactly": exactly("many")}), "ResourceClaim own: a: "),
    (claim("own", {"name": "a", "exactly": exactly(allocationMode="All")}), "only a count from 1"),
    (claim("own", {"name": "a", "exactly": exactly(count=0)}), "only a count from 1 to 32"),
]


@pytest.mark.parametrize(("made", "why"), BAD, ids=[each[1] for each in BAD])
def test_a_claim_that_makes_no_sense_is_declined(made: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tried(EngineDriver(**ON), made, user("web", claim="own"))


@pytest.mark.parametrize(
    ("request_", "more", "wrong"),
    [
        (
            {"name": "cpu", "exactly": exactly(capacity={"requests": {f"{CPU}s": "4"}})},
            {},
            f"ResourceClaim own: cpu: no device has a capacity '{CPU}s'; did you mean '{CPU}'?",
        ),
        (
            {"name": "cpu", "firstAvailable": [exactly("1", name="one")]},
            {"constraints": [{"requests": ["cpu/one"]}, {"requests": ["cpx"]}]},
            "ResourceClaim own: constraints[1]: there is no request 'cpx'; there are: cpu, cpu/one",
        ),
    ],
)
def test_a_claim_that_no_cluster_would_allocate_is_an_error(
    request_: dict[str, Any], more: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(wrong)}$"):
        tried(EngineDriver(**ON), claim("own", request_, **more), user("web", claim="own"))


def test_a_claim_that_is_not_in_the_manifests_and_a_mistyped_class_are_named() -> None:
    foreign = claim("own", {"name": "cpu", "exactly": exactly(class_="cpu.placement")})
    result = tried(
        EngineDriver(**ON),
        template("two", {"name": "cpu", "exactly": exactly("2")}),
        foreign,
        user("web", template="twoo"),
        user("other", claim="own"),
    )
    absent, mistyped, ignored = [each for each in result.warnings if "claim" in each]
    assert absent == (
        "the claim own was ignored: the manifests have no ResourceClaimTemplate 'twoo'; did you"
        " mean 'two'?"
    )
    assert mistyped == (
        "the request cpu of the claim own is not for our devices: its class is 'cpu.placement';"
        f" did you mean '{DEVICE_CLASS}'?"
    )
    assert ignored.startswith("the devices of resource claims were ignored: own: ")
