"""Ordinary mistakes, as ``kubectl apply`` tells them: of pods, and of everything that makes pods from a template."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.webhook.test_conditions import conditions_of
from tests.webhook.test_impossible_devices import FOUR, SHARES
from tests.webhook.test_impossible_requests import cards, node

from tessera.api.pod_templates import WORKLOADS, TemplateKind
from tessera.webhook.base import REVIEW_PATH, WORKLOAD_PATH
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.review import Reviewer

MAJOR = "nvidia.com/cuda.driver-version.major"
A100 = node("a100", *cards("A100-40GB", 4))
OLD, NEW = (
    msgspec.structs.replace(A100, name=name, labels={**A100.labels, MAJOR: major})
    for name, major in (("old", "550"), ("new", "580"))
)
LAYOUT = GpuNode(name="fixed", fixed=frozenset({"1g.5gb", "3g.20gb"}))
AMD = GpuNode(name="amd", foreign=frozenset({"amd.com/gpu"}))

SLICED, WHOLE, FIXED = (A100,), (FOUR,), (LAYOUT,)


class Row(NamedTuple):
    """A wrong pod.

    Attributes:
        limits: of its container.
        says: words of the warning or the refusal.
        nodes: the cluster.
        annotations: of the pod.
        refused: it is refused, not warned of.
        spec: more of its spec.
        labels: of the pod.
    """

    limits: dict[str, Any]
    says: tuple[str, ...]
    nodes: tuple[GpuNode, ...] = SLICED
    annotations: Mapping[str, str] = MappingProxyType({})
    refused: bool = False
    spec: Mapping[str, Any] = MappingProxyType({})
    labels: Mapping[str, str] = MappingProxyType({})


MIG = "nvidia.com/mig-3g.20gb"
ROWS = {
    "whole card where all are sliced": Row(
        {"nvidia.com/gpu": "1"},
        ("no node offers nvidia.com/gpu now: request the largest slice instead: nvidia.com/mig-7g.40gb", "gpu-memory"),
    ),
    "two of them": Row({"nvidia.com/gpu": "2"}, ("nvidia.com/mig-7g.40gb",)),
    "plural": Row({"nvidia.com/gpus": "1"}, ("no node offers nvidia.com/gpus: request nvidia.com/gpu",), WHOLE),
    "plural where all are sliced": Row({"nvidia.com/gpus": "1"}, ("request nvidia.com/mig-7g.40gb instead",)),
    "capitals": Row({"nvidia.com/GPU": "1"}, ("request nvidia.com/gpu instead",), WHOLE),
    "capitals of a slice": Row({"nvidia.com/MIG-3g.20gb": "1"}, (f"request {MIG} instead",)),
    "capitals in a profile": Row({"nvidia.com/mig-3G.20GB": "1"}, (MIG,), refused=True),
    "domain without an end": Row({"nvidia/mig-3g.20gb": "1"}, (f"request {MIG} instead",)),
    "domain without an end, whole": Row({"nvidia/gpu": "1"}, ("request nvidia.com/gpu instead",), WHOLE),
    "typing error in the domain": Row({"nvidai.com/gpu": "1"}, ("request nvidia.com/gpu instead",), WHOLE),
    "no mig-": Row({"nvidia.com/3g.20gb": "1"}, (f"request {MIG} instead",)),
    "underscore": Row({"nvidia.com/mig_3g.20gb": "1"}, (f"request {MIG} instead",)),
    "the domain backwards": Row({"org.instaslice/mig-3g.20gb": "1"}, (f"request {MIG} instead",)),
    "a slicer that nobody has": Row({"mig.redhat.com/3g.20gb": "1"}, (f"request {MIG} instead",)),
    "DAS": Row({"mig.das.com/3g.20gb": "1"}, (MIG,), refused=True),
    "InstaSlice": Row({"instaslice.redhat.com/mig-3g.20gb": "1"}, (MIG,), refused=True),
    "share where none shares": Row({"nvidia.com/gpu.shared": "1"}, ("no node offers nvidia.com/gpu.shared now",)),
    "two shares where none shares": Row({"nvidia.com/gpu.shared": "2"}, ("no node offers nvidia.com/gpu.shared now",)),
    "share with a hyphen": Row({"nvidia.com/gpu-shared": "1"}, ("request nvidia.com/gpu.shared instead",), (SHARES,)),
    "share without its end": Row({"nvidia.com/gpu.share": "1"}, ("request nvidia.com/gpu.shared instead",), (SHARES,)),
    "whole card where all are shared": Row(
        {"nvidia.com/gpu": "1"}, ("request what nodes have instead: nvidia.com/gpu.shared",), (SHARES,)
    ),
    "share of a slice": Row(
        {"nvidia.com/mig-1g.5gb.shared": "1"}, ("request a slice of its own: nvidia.com/mig-1g.5gb",)
    ),
    "HAMi": Row({"nvidia.com/gpumem": "3000"}, ("tessera.dev/gpu-memory: 3000Mi",)),
    "Volcano": Row({"volcano.sh/vgpu-memory": "3000"}, ("tessera.dev/gpu-memory: 3000Mi",)),
    "nos": Row({"nvidia.com/gpu-10gb": "1"}, ("tessera.dev/gpu-memory: 10Gi",)),
    "Tencent": Row({"tencent.com/vcuda-core": "1"}, ("tessera.dev/gpu-memory",)),
    "another vendor": Row({"amd.com/gpu": "1"}, ("no node offers amd.com/gpu now", "the device plugin of its vendor")),
    "Intel": Row({"gpu.intel.com/i915": "1"}, ("no node offers gpu.intel.com/i915 now",)),
    "more than a node has": Row({"nvidia.com/gpu": "8"}, ("no node could hold 8 x nvidia.com/gpu",), WHOLE),
    "slices where all are whole": Row({MIG: "1"}, (f"no node offers {MIG} now: request what nodes have",), WHOLE),
    "two slices, old driver": Row(
        {"nvidia.com/mig-1g.5gb": "2"},
        ("asks for 2 slices", "node old", "older than R570", "only the first"),
        (OLD, NEW),
    ),
    "two profiles, old driver": Row({MIG: "1", "nvidia.com/mig-1g.5gb": "1"}, ("only the first",), (OLD,)),
    "resource as an annotation": Row(
        {}, (f"annotation {MIG} has no effect: it is a resource, in resources.limits",), annotations={MIG: "1"}
    ),
    "resource as a selector": Row(
        {}, (f"nodeSelector {MIG} matches no node: it is a resource",), spec={"nodeSelector": {MIG: "1"}}
    ),
    "setting of another system": Row(
        {}, ("asks for a part of a card", "tessera.dev/gpu-memory"), annotations={"gpu-fraction": "0.5"}
    ),
    "annotation as a label": Row(
        {}, ("label tessera.dev/gpu-memory has no effect: it is an annotation",), labels={"tessera.dev/gpu-memory": "1"}
    ),
    "annotation that nobody reads": Row(
        {MIG: "1"},
        ("annotation tessera.dev/prority has no effect: Tessera reads no annotation of this name",),
        annotations={"tessera.dev/prority": "5"},
    ),
    "misspelt annotation": Row(
        {MIG: "1"},
        ("reads no annotation of this name; did you mean tessera.dev/movable?",),
        annotations={"tessera.dev/moveable": "true"},
    ),
    **{
        f"{key}={value[:9]}": Row(
            {MIG: "1"},
            (f'annotation tessera.dev/{key}: "{value}" has no effect: write {right}',),
            annotations={f"tessera.dev/{key}": value},
        )
        for key, right, values in (
            ("movable", '"true" or "false"', ("yes", "")),
            ("yields", '"true" or "false"', ("banana",)),
            ("require-preflight", '"true" or "false"', ("1",)),
            ("memory-limit", "a quantity of bytes such as 4Gi", ("banana", "-4Gi", "0")),
            ("memory-enforcement", '"off"', ("none",)),
            ("fault-toleration-seconds", "a number of seconds", ("nan", "-1", "9" * 10, "1e3", "1\u0663")),
        )
        for value in values
    },
    "misspelt label": Row({MIG: "1"}, ("did you mean tessera.dev/queue?",), labels={"tessera.dev/queu": "a"}),
    "label of nodes": Row(
        {MIG: "1"}, ("a pod selects such nodes by nodeSelector",), labels={"nvidia.com/mig.config": "dynamic"}
    ),
    "no hyphen, no dot": Row({"nvidia.com/mig-3g20gb": "1"}, ("is not a MIG profile",), refused=True),
    "no b": Row({"nvidia.com/mig-3g.20g": "1"}, (f"Did you mean {MIG}?",), refused=True),
    "profile of another card": Row(
        {"nvidia.com/mig-1g.10gb.me": "1"}, ("cards of this cluster have 1g.5gb",), refused=True
    ),
    "profile of no card, fixed layouts": Row(
        {"nvidia.com/mig-3g.21gb": "1"}, ("The cards of this cluster have 1g.5gb, 3g.20gb.",), FIXED, refused=True
    ),
    "half a slice": Row({MIG: "0.5"}, ("slices come whole",), refused=True),
    "a hundred slices": Row({"nvidia.com/mig-1g.5gb": "100"}, ("holds 28",), refused=True),
    "too many whole slices": Row({"nvidia.com/mig-7g.40gb": "8"}, ("holds 4",), refused=True),
    "memory of no card": Row({}, ("no GPU",), annotations={"tessera.dev/gpu-memory": "200Gi"}, refused=True),
    "memory with a blank": Row({}, ("10 GB",), annotations={"tessera.dev/gpu-memory": "10 GB"}, refused=True),
    "unknown annotation": Row({}, ("tessera.dev/gpu-memory?",), annotations={"tessera.dev/gpu-mem": "1"}, refused=True),
    "both": Row({MIG: "1"}, ("gpu-memory",), annotations={"tessera.dev/gpu-memory": "10Gi"}, refused=True),
    "bound by its author": Row({MIG: "1"}, ("spec.nodeName",), refused=True, spec={"nodeName": "a100"}),
}


def pod(row: Row) -> dict[str, Any]:
    resources = {"resources": {"limits": row.limits, "requests": dict(row.limits)}} if row.limits else {}
    metadata = {"annotations": dict(row.annotations)} if row.annotations else {}
    metadata |= {"labels": dict(row.labels)} if row.labels else {}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", **resources}], **row.spec}}


def workload(kind: TemplateKind, template: dict[str, Any]) -> dict[str, Any]:
    item = template
    for name in reversed(kind.templates[0]):
        item = {name: item}
    return {"metadata": {"name": "w"}, **item}


def answer(item: dict[str, Any], kind: dict[str, str], path: str, *nodes: GpuNode) -> Any:
    return ask(Capabilities.of(nodes), item, kind, path)


def ask(cluster: Capabilities, item: dict[str, Any], kind: dict[str, str], path: str) -> Any:
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": item}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.decode(Reviewer(cluster).review(msgspec.json.encode(body), path))["response"]


def is_sent(item: dict[str, Any], path: str, old: dict[str, Any] | None = None) -> bool:
    scope = {"object": item, "oldObject": old, "request": {"operation": "UPDATE" if old else "CREATE"}}
    return any(all(each.is_true(scope) for each in found) for found in conditions_of(path).values())


def text(found: Any) -> str:
    return "\n".join([*found.get("warnings", []), found.get("status", {}).get("message", "")])


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_the_author_of_a_pod_is_told_when_it_is_created(row: Row) -> None:
    assert is_sent(pod(row), REVIEW_PATH)
    found = answer(pod(row), {"kind": "Pod", "group": ""}, REVIEW_PATH, *row.nodes)
    assert found["allowed"] is not row.refused
    for words in row.says:
        assert words in text(found)
    if row.refused:
        assert (found["status"]["code"], found["status"]["reason"]) == (422, "Invalid")


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_the_author_of_a_template_is_warned_of_the_same(row: Row, kind: TemplateKind) -> None:
    item = workload(kind, pod(row))
    assert is_sent(item, WORKLOAD_PATH)
    found = answer(item, {"kind": kind.kind, "group": kind.group}, WORKLOAD_PATH, *row.nodes)
    assert found["allowed"]
    assert "patch" not in found
    assert all(each.startswith(f"{'.'.join(kind.templates[0])}: ") for each in found["warnings"])
    assert ("its pods will be refused" in text(found)) is row.refused
    for words in row.says:
        assert words in text(found)


RIGHT = {
    "a slice": Row({MIG: "1"}, ()),
    "a whole card": Row({"nvidia.com/gpu": "4"}, (), WHOLE),
    "a share": Row({"nvidia.com/gpu.shared": "1"}, (), (SHARES, A100)),
    "two slices with a new driver": Row({MIG: "2"}, (), (NEW,)),
    "another vendor's that a node has": Row({"amd.com/gpu": "1"}, (), (AMD, A100)),
    "a name of a device plugin": Row(
        {"nvidia.com/gpumem": "1"}, (), (msgspec.structs.replace(A100, undescribed=frozenset({"nvidia.com/gpumem"})),)
    ),
    "none": Row({"nvidia.com/gpu": "0"}, ()),
    "a selector of nodes": Row({MIG: "1"}, (), (OLD,), spec={"nodeSelector": {MAJOR: "550"}}),
    "queue and gang": Row({MIG: "1"}, (), labels={"tessera.dev/queue": "a", "tessera.dev/gang": "b"}),
    "user and other domains": Row(
        {MIG: "1"},
        (),
        annotations={"tessera.dev/user": "ann", "lab.tessera.dev/x": "y"},
        labels={"tessera.dev/user": "a"},
    ),
    "memory": Row({}, (), (A100,), annotations={"tessera.dev/gang-size": "1"}),
}


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in RIGHT.items()])
def test_a_right_request_gets_no_warning(row: Row) -> None:
    assert "warnings" not in answer(pod(row), {"kind": "Pod", "group": ""}, REVIEW_PATH, *row.nodes)


def test_while_nodes_may_come_a_right_name_is_not_warned_of_and_a_wrong_one_is() -> None:
    unread = GpuNode(name="new", labels={"nvidia.com/mig.config": "dynamic"}, unread=True)
    for limits, warned in (({"nvidia.com/gpu": "1"}, False), ({"nvidia.com/gpus": "1"}, True)):
        found = answer(pod(Row(limits, ())), {"kind": "Pod", "group": ""}, REVIEW_PATH, A100, unread)
        assert ("warnings" in found) is warned


def test_a_key_that_an_option_of_the_controller_names_is_known() -> None:
    body = pod(Row({MIG: "1"}, (), labels={"tessera.dev/customer": "a"}))
    kind = {"kind": "Pod", "group": ""}
    assert "reads no label of this name" in text(answer(body, kind, REVIEW_PATH, A100))
    cluster = Capabilities.of((A100,))
    cluster.pod_keys = ("tessera.dev/customer",)
    assert not text(ask(cluster, body, kind, REVIEW_PATH))


def test_a_controller_is_not_warned_of_its_pods() -> None:
    made = pod(ROWS["plural"])
    made["metadata"]["ownerReferences"] = [{"name": "rs", "uid": "u", "controller": True}]
    assert "warnings" not in answer(made, {"kind": "Pod", "group": ""}, REVIEW_PATH, *WHOLE)
    job = workload(WORKLOADS[3], pod(ROWS["plural"]))
    assert is_sent(job, WORKLOAD_PATH)
    assert not is_sent({**job, "metadata": made["metadata"]}, WORKLOAD_PATH)


def test_a_change_is_reviewed_if_its_spec_changed() -> None:
    for kind in WORKLOADS:
        before, after = (workload(kind, pod(ROWS[name])) for name in ("capitals", "plural"))
        assert is_sent(after, WORKLOAD_PATH, before)
        assert not is_sent({**after, "metadata": {"name": "w", "annotations": {"a": "b"}}}, WORKLOAD_PATH, after)


def test_plain_workloads_are_not_sent() -> None:
    for kind in WORKLOADS:
        assert not is_sent(workload(kind, pod(Row({"cpu": "1"}, ()))), WORKLOAD_PATH)
        assert not is_sent(workload(kind, pod(Row({}, ()))), WORKLOAD_PATH)


def test_warnings_are_few_and_short() -> None:
    many = {
        "metadata": {},
        "spec": {
            "containers": [
                {"name": f"c{n}", "resources": {"limits": {f"nvidia.com/{'x' * 200}": "1"}}} for n in range(40)
            ]
        },
    }
    found = answer(many, {"kind": "Pod", "group": ""}, REVIEW_PATH, *WHOLE)["warnings"]
    assert (len(found), max(map(len, found))) <= (8, 480)
