"""What the commands of `cluster` are given by mistake: one sentence that names it, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cli.cluster import documents

SYNTHETIC = ["--synthetic", "rack:2 host:2"]
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
BAD = {
    "": "0 objects; give one pod",
    DEEP: "it is nested too deep",
    '{"a": [1, 2}': "JSON is malformed",
    '{"a": "\\udc00x"}': "JSON is malformed",
    "{a: [1, 2}": "line 1, column",
    "a: 'x": "line 1, column",
    "\ufeff\x01": "position",
    "kind: List\nitems: 5": "items: 5 is not a list",
    "kind: List\nitems: [{kind: Service}]": "0 objects; give one pod; left out: 1 Service",
    "kind: [Pod]": "kind: a list (1 entry) is no kind; there are: Pod, Deployment",
    "spec: {}": "kind: it is missing; there are: Pod, Deployment",
    "kind: Service": "0 objects; give one pod; left out: 1 Service",
    "kind: JobSet": "metadata",
    "- 1": "1 is not a Kubernetes object",
}


def refusal(*arguments: str, stdin: str | None = None) -> str:
    """Return the error message, which is one line."""
    done = CliRunner().invoke(main, ["cluster", *arguments], input=stdin)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    (line,) = done.output.splitlines()
    return line


@pytest.mark.parametrize(("text", "problem"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_pod_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    said = refusal("fit", "-f", str(path), "--cluster", str(path))
    assert said.startswith(f"nri-policy: {path}: ")
    assert problem in said


@pytest.mark.parametrize("text", [text for text in BAD if text])
def test_bad_groups_and_clusters_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert refusal("place", "-f", str(path), *SYNTHETIC).startswith(f"nri-policy: {path}: ")
    if "Service" not in text and "JobSet" not in text:  # of the kinds that do not matter
        assert refusal("tree", "--cluster", str(path)).startswith(f"nri-policy: {path}: ")
        assert refusal("tree", "--cluster", "-", stdin=text).startswith(
            "nri-policy: standard input: "
        )


@pytest.mark.parametrize("command", [["tree", "--cluster"], ["place", *SYNTHETIC, "-f"]])
def test_a_file_without_an_end_is_not_read_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    assert refusal(*command, "/dev/zero") == "nri-policy: /dev/zero: it is not text"
    monkeypatch.setattr(documents, "MAX_SIZE", 1 << 21)
    text = "# as long as it goes\n" * 200_000
    (tmp_path / "long").write_text(text)
    for said in (
        refusal(*command, str(tmp_path / "long")),
        refusal(*command, "-", stdin=text),
    ):
        assert said.endswith(": it is longer than 2097152 bytes")


def test_several_pods_are_not_judged_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("kind: Pod\n---\nkind: Pod\n")
    said = refusal("fit", "-f", str(path), "--cluster", str(path))
    assert said == f"nri-policy: {path}: 2 objects; give one pod"


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ("failures: {n: -1000000000000000000000000000000}", "failures.n: -1"),
        ("failures: {n: -1e30}", "failures"),
        ("failures: {n: 18446744073709551616}", "failures.n: 18446744073709551616 is not from 0"),
        ("nodes: 3", "nodes"),
    ],
)
def test_numbers_that_make_no_sense_are_named(tmp_path: Path, cluster: str, problem: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster)
    assert problem in refusal("tree", "--cluster", str(path))


def test_a_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    for text in (b"kind: P\xff", b"kind: P\xed\xa0\x80", b'{"kind": "P\xed\xa0\x80"}'):
        path.write_bytes(text)
        said = refusal("place", "-f", str(path), *SYNTHETIC)
        assert said.startswith(f"nri-policy: {path}: the text is not UTF-8 (at position ")


def test_yaml_may_begin_with_a_brace(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}\n")
    done = CliRunner().invoke(main, ["cluster", "place", "-f", str(path), *SYNTHETIC])
    assert done.exit_code == 0, done.output


def test_the_standard_input_is_read_once() -> None:
    said = refusal(
        "place", "-f", "-", "--cluster", "-", stdin='{"kind": "Node", "metadata": {"name": "n"}}'
    )
    assert "the standard input can be read once: give one - only" in said


GROUP = """\
apiVersion: placement.nri/v1alpha1
kind: PlacementGroup
metadata: {name: j}
spec:
  podSets:
  - {name: m, count: 2, template: {spec: {containers: [{name: c}]}}, request: REQUEST}
"""


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ('{spreadOver: ["zone={a: -2}"]}', "request.spreadOver[0]: 'a: -2' is not VALUE: WEIGHT"),
        ("{required: a, preferred: b}", "request: required 'a' and preferred 'b' exclude"),
    ],
)
def test_a_request_that_breaks_a_rule_is_named_with_its_file(
    tmp_path: Path, request_: str, problem: str
) -> None:
    path, text = tmp_path / "group.yaml", GROUP.replace("REQUEST", request_)
    path.write_text(text)
    said = refusal("place", "-f", str(path), *SYNTHETIC)
    assert said.startswith(f"nri-policy: {path}: spec.podSets[0].{problem}")
    path.write_text(f"{GROUP.replace('REQUEST', '{}').replace('name: j', 'name: i')}---\n{text}")
    assert f"{path}: [1].spec.podSets[0].{problem}" in refusal("place", "-f", str(path), *SYNTHETIC)


def test_a_file_without_a_cluster_in_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text("")
    said = refusal("tree", "--cluster", str(path))
    assert said == f"nri-policy: {path}: it is empty"
    path.write_text("apiVersion: v1\nclusters: [")
    said = refusal("tree", "--kubeconfig", str(path))
    assert said.startswith(f"nri-policy: --kubeconfig {path}: line 3, column 1: a value is missing")


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("{}", "nothing"),
        ("kind: List\nitems: []", "nothing"),
        (
            "kind: List\nitems: [{kind: Pod, metadata: {name: p}}, {kind: Service}]",
            "1 Pod, 1 Service",
        ),
    ],
)
def test_a_file_without_a_node_is_no_cluster(tmp_path: Path, text: str, contents: str) -> None:
    cluster, group = tmp_path / "cluster.yaml", tmp_path / "group.yaml"
    cluster.write_text(text)
    group.write_text(GROUP.replace("REQUEST", "{}"))
    pod = tmp_path / "pod.yaml"
    pod.write_text("{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}")
    (tmp_path / "steps.yaml").write_text("[]")
    for command in (
        ["tree"],
        ["place", "-f", str(group)],
        ["explain", "-f", str(group)],
        ["plan", "-f", str(group)],
        ["fit", "-f", str(pod)],
        ["simulate", str(tmp_path / "steps.yaml")],
    ):
        said = refusal(*command, "--cluster", str(cluster))
        assert said == f"nri-policy: no Node in {cluster} (it has: {contents})"


def test_what_does_not_count_in_a_cluster_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("""\
{kind: Node, metadata: {name: a}}
---
{kind: Pod, metadata: {name: p}, spec: {nodeName: gone, containers: []}}
---
{kind: NodeResourceTopology, metadata: {name: gone}}
---
{kind: Service}
---
{kind: "Odd\\e"}
""")
    done = CliRunner().invoke(main, ["cluster", "tree", "--cluster", str(path)])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "note: 1 pod on nodes that are not in the files",
        "note: 1 NodeResourceTopology object without a node in the files",
        "note: not read: 1 Service, 1 Odd\\x1b",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: lots}}}",
            "nodes[0].status.allocatable.cpu: 'lots' is not a CPU quantity",
        ),
        (
            """
kind: NodeResourceTopology
metadata: {name: n1}
zones: [{name: z, type: Node, resources: [{name: cpu, allocatable: lots, available: 1}]}]
""",
            "zones[0].zones[0].resources.cpu: 'lots' is not a quantity",
        ),
    ],
)
def test_a_bad_quantity_is_named_with_its_file_and_object(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    said = refusal("tree", "--cluster", str(path))
    assert said.startswith(f"nri-policy: {path}: {problem}")
    assert said.endswith((" (in Node 'n1')", " (in NodeResourceTopology 'n1')"))
