"""Reasons for readers with few rights: the same case as for an administrator, without a name that they may not see."""

import msgspec
import pytest
from tests.explain.test_foreign_pods import with_gpus
from tests.explain.test_pods import agent, bound, cards, node, pod

from tessera.api.instaslice import Instaslice
from tessera.clock import rfc3339
from tessera.dashboard.explainer import explain_privately
from tessera.explain.explanation import Explanation
from tessera.explain.snapshot import Snapshot
from tessera.kube.resources import Node, Pod
from tessera.visibility import FULL, Redactor, Visibility

NOW = 1_800_000_000.0
NODE, HOLDER, OTHERS = "machine-of-acme", "secret-model", "project-x"
TENANT = Visibility(namespaces=frozenset({"team"}))
REDACTOR = Redactor(b"key")


def elsewhere(holder: Pod) -> Pod:
    return msgspec.structs.replace(holder, metadata=msgspec.structs.replace(holder.metadata, namespace=OTHERS))


def held_by(name: str) -> Instaslice:
    found = cards((name, "7g.40gb", 0, 8, "created"), name=NODE)
    (request,) = found.spec.pod_allocation_requests.values()
    reference = msgspec.structs.replace(request.pod_ref, namespace=OTHERS)
    requests = {reference.uid: msgspec.structs.replace(request, pod_ref=reference)}
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, pod_allocation_requests=requests))


def explain(who: Pod, where: Node, cards_there: Instaslice, *others: Pod, sees: Visibility = TENANT) -> Explanation:
    objects = Snapshot(now=NOW, pods=[who, AGENT, *others], nodes=[where], instaslices=[cards_there])
    (found,) = explain_privately(objects, [who], sees, REDACTOR)
    return found


AGENT = msgspec.structs.replace(agent(), spec=msgspec.structs.replace(agent().spec, node_name=NODE))


def said(found: Explanation) -> str:
    return "\n".join([found.verdict, *found.facts, *found.help])


HOLDING = elsewhere(
    bound(HOLDER, "7g.40gb", spec={"nodeName": NODE}, status={"phase": "Running", "startTime": rfc3339(NOW - 7200)})
)
CASES: dict[str, tuple[Pod, Node, Instaslice, *tuple[Pod, ...]]] = {
    "full": (pod(), node(NODE), held_by(HOLDER), HOLDING),
    "cordoned": (pod(), node(NODE, unschedulable=True), cards(name=NODE)),
    "not ready": (pod(), node(NODE, ready="False"), cards(name=NODE)),
    "too little": (pod(limits={"cpu": "9"}), node(NODE), cards(name=NODE)),
    "placing": (pod(), node(NODE), cards(name=NODE)),
    "by host name": (pod(spec={"nodeSelector": {"kubernetes.io/hostname": "n2"}}), node(NODE), cards(name=NODE)),
    "a whole card": (
        pod(profile="", gates=(), limits={"nvidia.com/gpu": "1"}, spec={"nodeSelector": {"rack": "r9"}}),
        with_gpus(NODE),
        cards(name=NODE),
        elsewhere(bound(HOLDER, "", limits={"nvidia.com/gpu": "1"}, spec={"nodeName": NODE})),
    ),
    "a whole card that others hold": (
        pod(profile="", gates=(), limits={"nvidia.com/gpu": "1"}),
        with_gpus(NODE),
        cards(name=NODE),
        elsewhere(bound(HOLDER, "", limits={"nvidia.com/gpu": "1"}, spec={"nodeName": NODE})),
    ),
    "another scheduler": (pod(gates=(), spec={"schedulerName": "kai-scheduler"}), node(NODE), cards(name=NODE)),
    "no card": (pod(), node(NODE), msgspec.structs.replace(cards(name=NODE), status=type(cards().status)())),
    "its own pod": (
        bound(status={"phase": "Running"}, spec={"nodeName": NODE}),
        node(NODE),
        cards(("a", "3g.20gb", 4, 4, "created"), name=NODE),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_case_is_that_of_an_administrator_and_no_hidden_name_is_in_the_text(case: str) -> None:
    who, where, held, *others = CASES[case]
    full, private = (explain(who, where, held, *others, sees=sees) for sees in (FULL, TENANT))
    assert private.case == full.case
    own = [NODE] if who.spec.node_name else []  # the pod's own object names it
    assert not any(name in said(private) for name in {NODE, HOLDER, OTHERS}.difference(own))
    assert all(f"node {name}" in said(private) for name in own)
    assert "posting" not in said(private), "the message of a node's condition"


def test_labels_of_nodes_are_named_to_those_who_may_list_nodes() -> None:
    who, where, held, *others = CASES["a whole card"]
    racks = msgspec.structs.replace(where.metadata, labels={**where.metadata.labels, "rack": "r1-of-acme"})
    full, private = (
        explain(who, msgspec.structs.replace(where, metadata=racks), held, *others, sees=sees)
        for sees in (FULL, TENANT)
    )
    asked = "spec.nodeSelector asks for rack=r9, and no node has this value"
    assert f"{asked}; nodes have r1-of-acme" in full.facts
    assert asked in private.facts
    assert "acme" not in said(private)


def test_names_become_the_aliases_of_the_page() -> None:
    found = explain(*CASES["full"])
    assert f"on node {REDACTOR.node(NODE)}" in said(found)
    assert f"pod ~/{REDACTOR.pod(OTHERS, HOLDER)}" in said(found)


def test_one_who_may_list_nodes_sees_them_and_still_no_other_pods() -> None:
    who, where, held, *others = CASES["full"]
    found = explain(who, where, held, *others, sees=Visibility(nodes=True, namespaces=frozenset({"team"})))
    assert f"on node {NODE}" in said(found)
    assert HOLDER not in said(found)


def test_names_that_begin_alike_are_told_apart() -> None:
    objects = Snapshot(
        now=NOW,
        pods=[pod()],
        nodes=[node("gpu", unschedulable=True), node("gpu-1", unschedulable=True)],
        instaslices=[cards(name="gpu"), cards(name="gpu-1")],
    )
    (found,) = explain_privately(objects, [objects.pods[0]], TENANT, REDACTOR)
    assert "gpu-1" not in said(found)
    assert REDACTOR.node("gpu-1") in said(found)
    assert "nvidia.com/gpu" not in said(found) or "~" not in said(found).partition("nvidia.com/gpu")[2][:1]
