"""Required pod affinity and anti-affinity, hard topology spread, host ports: the words and cases of kube-scheduler."""

from typing import Any

import pytest

from tessera_lab.scheduler.decision import NodeChoice, Unschedulable, decide
from tessera_lab.scheduler.state.node_cache import CachedPod, NodeCache, build_pod_info

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def cluster(*zones: str) -> NodeCache:
    """Nodes ``n1``, ``n2``, … in these zones."""
    made = NodeCache()
    for number, zone in enumerate(zones, 1):
        labels = {HOST: f"n{number}"} | ({ZONE: zone} if zone else {})
        made.set_node(f"n{number}", labels, {}, {"cpu": "64", "pods": "100"})
    made.namespaces.update({"default": {"team": "a"}, "other": {"team": "b"}})
    return made


def pod(name: str, app: str = "", *, namespace: str = "default", terminating: bool = False, **spec: Any) -> CachedPod:
    labels = {"app": app} if app else {}
    return build_pod_info(f"{namespace}/{name}", f"uid-{name}", 0.0, spec, labels, terminating=terminating)


def term(app: str, key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(app: str, key: str = ZONE, skew: int = 1, **more: Any) -> dict[str, Any]:
    rule = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": {"app": app}}, **more}]}


def why(answer: NodeChoice | Unschedulable) -> str:
    assert isinstance(answer, Unschedulable)
    return answer.reasons


def test_a_pod_goes_where_its_affinity_leads() -> None:
    made = cluster("a", "b", "b")
    made.place(pod("db", "db"), "n2")
    assert decide(pod("web", affinity=near(term("db", HOST))), made) == NodeChoice("n2")
    assert decide(pod("web", affinity=near(term("db")), nodeSelector={HOST: "n3"}), made) == NodeChoice("n3")
    text = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    assert why(decide(pod("web", affinity=near(term("cache"))), made)) == text


def test_the_first_pod_of_a_group_need_not_wait_for_itself() -> None:
    assert isinstance(decide(pod("p", "group", affinity=near(term("group"))), cluster("a")), NodeChoice)
    assert why(decide(pod("p", "group", affinity=near(term("group", "rack"))), cluster("a")))


def test_anti_affinity_works_in_both_directions() -> None:
    made = cluster("a", "a", "b")
    made.place(pod("loner", "loner", affinity=apart(term("noise"))), "n1")
    assert decide(pod("noise", "noise"), made) == NodeChoice("n3")
    assert decide(pod("second", affinity=apart(term("loner"))), made) == NodeChoice("n3")
    made.place(pod("noise", "noise"), "n3")
    text = why(decide(pod("more", "noise", affinity=apart(term("noise"))), made))
    assert "2 node(s) didn't satisfy existing pods anti-affinity rules" in text
    assert "1 node(s) didn't match pod anti-affinity rules" in text


@pytest.mark.parametrize(
    ("scope", "meets"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, False),
    ],
)
def test_a_term_is_about_the_namespaces_that_it_says(scope: dict[str, Any], *, meets: bool) -> None:
    made = cluster("a")
    made.place(pod("x", "x", namespace="other"), "n1")
    assert isinstance(decide(pod("p", affinity=apart(term("x", **scope))), made), Unschedulable) is meets


def test_spread_keeps_the_skew() -> None:
    made = cluster("a", "b")
    made.place(pod("w0", "w"), "n1")
    assert decide(pod("w1", "w", **spread("w")), made) == NodeChoice("n2")
    pinned = {"nodeSelector": {ZONE: "a"}, **spread("w", nodeAffinityPolicy="Ignore")}
    text = why(decide(pod("w1", "w", **pinned), made))
    assert "1 node(s) didn't match pod topology spread constraints" in text


def test_a_pod_that_is_going_and_a_node_without_the_label_do_not_count() -> None:
    made = cluster("a", "b", "")
    made.place(pod("w0", "w", terminating=True), "n1")
    assert isinstance(decide(pod("w1", "w", nodeSelector={HOST: "n1"}, **spread("w")), made), NodeChoice)
    text = why(decide(pod("w1", "w", nodeSelector={HOST: "n3"}, **spread("w")), made))
    assert "1 node(s) didn't match pod topology spread constraints (missing required label)" in text


def test_too_few_domains_count_as_an_empty_one() -> None:
    made = cluster("a", "b")
    made.place(pod("w0", "w"), "n1")
    made.place(pod("w1", "w"), "n2")
    assert isinstance(decide(pod("w2", "w", **spread("w")), made), NodeChoice)
    assert why(decide(pod("w2", "w", **spread("w", minDomains=3)), made))


def test_label_keys_split_a_spread_by_revision() -> None:
    made = cluster("a", "b")
    made.place(build_pod_info("default/old", "old", 0.0, {}, {"app": "w", "hash": "1"}), "n1")
    rule = spread("w", matchLabelKeys=["hash"])
    made.place(build_pod_info("default/other", "other", 0.0, {}, {"app": "w", "hash": "2"}), "n2")
    new = build_pod_info("default/new", "new", 0.0, {**rule, "nodeSelector": {HOST: "n1"}}, {"app": "w", "hash": "2"})
    assert decide(new, made) == NodeChoice("n1")


def test_taints_count_only_where_the_constraint_says_so() -> None:
    made = cluster("a", "b")
    made.set_node("n2", made.nodes["n2"].labels, {"taints": [{"key": "k", "effect": "NoSchedule"}]}, {"pods": "9"})
    made.place(pod("w0", "w"), "n1")
    assert why(decide(pod("w1", "w", **spread("w")), made))
    assert decide(pod("w1", "w", **spread("w", nodeTaintsPolicy="Honor")), made) == NodeChoice("n1")


def port(number: int, address: str = "", protocol: str = "TCP") -> dict[str, Any]:
    return {"containers": [{"ports": [{"hostPort": number, "hostIP": address, "protocol": protocol}]}]}


@pytest.mark.parametrize(
    ("asked", "free"),
    [
        (port(80), False),
        (port(80, "10.0.0.2"), True),
        (port(80, "10.0.0.1"), False),
        (port(80, protocol="UDP"), True),
        (port(81), True),
    ],
)
def test_a_host_port_is_taken_by_protocol_and_address(asked: dict[str, Any], *, free: bool) -> None:
    made = cluster("a")
    made.place(pod("first", **port(80, "10.0.0.1")), "n1")
    assert isinstance(decide(pod("second", **asked), made), NodeChoice) is free


def test_a_sidecar_has_host_ports_too() -> None:
    made = cluster("a")
    sidecar: dict[str, Any] = {"initContainers": [{"restartPolicy": "Always", "ports": [{"hostPort": 80}]}]}
    made.place(pod("first", **sidecar), "n1")
    assert "free ports" in why(decide(pod("second", **port(80)), made))
