"""Our manifests applied twice to a real API server: the second time changes nothing.

`kubectl apply` sends a change for ever where what we write and what the API server makes of it
differ: a default beside fields that we give, another order. Tools that compare the two, as GitOps
does, never come to rest then.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import CONFIGS, kustomization
from tools.control_plane import NEWEST

FILES = (
    "kubernetes/crd.yaml",
    "kubernetes/settings-crd.yaml",
    "cluster/placement-groups-crd.yaml",
    "cluster/settings-crd.yaml",
    "cluster/settings.yaml",
    "cluster/bind.yaml",
    "kustomize/cluster-groups/gate-policy.yaml",
)
FOLDERS = ("kubernetes", "kustomize/cluster-groups", "kustomize/crio", "kustomize/openshift",
           "kustomize/containerd-1.7", "kustomize/canary")  # fmt: skip
COMPONENTS = (
    ("kubernetes", ("readiness", "dra")),
    ("kubernetes", ("without-pods",)),
    ("cluster", ("cluster-readiness", "cluster-kueue")),
)
CHECKS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: admissionchecks.kueue.x-k8s.io}
spec:
  group: kueue.x-k8s.io
  scope: Cluster
  names: {kind: AdmissionCheck, plural: admissionchecks}
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    require("kube-apiserver", "kubectl", release=NEWEST)
    with ControlPlane(tmp_path_factory.mktemp("applied-again"), release=NEWEST) as made:
        checks = made.folder / "checks.yaml"
        checks.write_text(CHECKS)
        made.kubectl("apply", "-f", str(checks))
        path = "/apis/kueue.x-k8s.io/v1beta2/admissionchecks"
        made.until(lambda: made.ask("GET", path).status == 200, "admission checks are served")
        yield made


def _changes(plane: ControlPlane, *what: str) -> list[str]:
    """Apply *what* twice; return the lines of the second time that tell of a change."""
    plane.until(lambda: "error" not in plane.kubectl("apply", *what, check=False), "it is applied")
    again = plane.kubectl("apply", *what).splitlines()
    return [line for line in again if line and not line.endswith(" unchanged")]


def test_to_apply_a_file_again_changes_nothing(plane: ControlPlane) -> None:
    files = [str(CONFIGS / each) for each in FILES]
    changes = {each: _changes(plane, "-f", each) for each in files}
    assert not any(changes.values()), changes


def test_to_apply_a_folder_again_changes_nothing(plane: ControlPlane) -> None:
    folders = [str(CONFIGS / each) for each in FOLDERS]
    changes = {each: _changes(plane, "-k", each) for each in folders}
    assert not any(changes.values()), changes


def test_to_apply_components_again_changes_nothing(plane: ControlPlane) -> None:
    for side, components in COMPONENTS:
        folder = kustomization(plane, [side], [*components])
        assert _changes(plane, "-k", folder) == [], components
