"""Among the nodes that can take a pod, soft rules choose as kube-scheduler's plugins do."""

from typing import Any

import pytest

from tessera_lab.scheduler.decision import NodeChoice, Unschedulable, decide
from tessera_lab.scheduler.state.node_cache import CachedPod, NodeCache, build_pod_info

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def cluster(*zones: str) -> NodeCache:
    """Nodes ``n1``, ``n2``, … in these zones."""
    made = NodeCache()
    for number, zone in enumerate(zones, 1):
        labels = {HOST: f"n{number}"} | ({ZONE: zone} if zone else {})
        made.set_node(f"n{number}", labels, {}, {"cpu": "10", "memory": "10Gi", "pods": "100"})
    made.namespaces["default"] = {}
    return made


def pod(name: str, app: str = "", *, owner: str = "", cpu: str = "0", ending: bool = False, **spec: Any) -> CachedPod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    labels = {"app": app} if app else {}
    whole = {"containers": [container], **spec}
    return build_pod_info(f"default/{name}", f"uid-{name}", 0.0, whole, labels, terminating=ending, owner=owner)


def prefers(kind: str, app: str, key: str = HOST, weight: int = 100) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"affinity": {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}}


def anyway(app: str, key: str = HOST) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": {"app": app}}}]}


def limits(cpu: str, memory: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}


def place(answer: NodeChoice | Unschedulable) -> str:
    assert isinstance(answer, NodeChoice)
    return answer.node


@pytest.mark.parametrize(
    "rule", [prefers("podAntiAffinity", "web"), anyway("web"), {"owner": "set"}], ids=["anti", "anyway", "default"]
)
def test_replicas_are_apart_although_one_node_is_emptier(rule: dict[str, Any]) -> None:
    made = cluster("", "", "")
    made.place(pod("busy", cpu="3"), "n2")
    made.place(pod("full", cpu="4"), "n3")
    places = []
    for number in range(4):
        replica = pod(f"web-{number}", "web", **rule)
        places.append(place(decide(replica, made)))
        made.place(replica, places[-1])
    assert places == ["n1", "n2", "n3", "n1"]


def test_replicas_are_spread_over_zones_before_nodes_of_one_zone() -> None:
    made = cluster("a", "a", "b")
    made.place(pod("busy", cpu="3"), "n3")
    made.place(pod("web-0", owner="set"), "n1")
    assert place(decide(pod("web-1", owner="set"), made)) == "n3"


def test_ending_and_gone_replicas_do_not_count() -> None:
    made = cluster("", "")
    made.place(pod("busy", cpu="2"), "n2")
    made.place(pod("web-0", owner="set"), "n1")
    assert place(decide(pod("web-1", owner="set"), made)) == "n2"
    made.place(pod("web-0", owner="set", ending=True), "n1")
    assert place(decide(pod("web-1", owner="set"), made)) == "n1"
    made.remove_pod("uid-web-0")
    assert made.replicas == {}


def test_a_pod_goes_near_those_that_it_prefers() -> None:
    made = cluster("a", "b", "b")
    made.place(pod("cache", "cache", cpu="5"), "n2")
    assert place(decide(pod("web", **prefers("podAffinity", "cache")), made)) == "n2"
    assert place(decide(pod("web", **prefers("podAffinity", "cache", ZONE)), made)) == "n3"


def test_placed_pods_keep_others_away_that_they_would_rather_not_have() -> None:
    made = cluster("", "")
    made.place(pod("busy", cpu="2"), "n2")
    made.place(pod("quiet", **prefers("podAntiAffinity", "noisy")), "n1")
    assert place(decide(pod("noise", "noisy"), made)) == "n2"
    assert place(decide(pod("other", "calm"), made)) == "n1"
    made.remove_pod("uid-quiet")
    assert place(decide(pod("noise", "noisy"), made)) == "n1"


def test_greater_weights_win() -> None:
    made = cluster("", "")
    made.place(pod("a", "a"), "n1")
    made.place(pod("b", "b"), "n2")
    near_a, near_b = (prefers("podAffinity", app, weight=weight) for app, weight in (("a", 10), ("b", 11)))
    both = [*near_a["affinity"]["podAffinity"][PREFERRED], *near_b["affinity"]["podAffinity"][PREFERRED]]
    assert place(decide(pod("web", affinity={"podAffinity": {PREFERRED: both}}), made)) == "n2"


def test_a_rule_of_its_own_ends_the_default_spreading() -> None:
    made = cluster("a", "a")
    made.place(pod("busy", cpu="2"), "n2")
    made.place(pod("web-0", "web", owner="set"), "n1")
    assert place(decide(pod("web-1", "web", owner="set", **anyway("web", ZONE)), made)) == "n1"


def test_a_node_without_the_label_of_a_rule_comes_last() -> None:
    made = cluster("", "a")
    made.place(pod("web-0", "web", cpu="3"), "n2")
    assert place(decide(pod("web-1", "web", **anyway("web", ZONE)), made)) == "n2"


def test_a_pod_goes_where_cpu_and_memory_stay_in_balance() -> None:
    made = cluster("", "")
    made.place(pod("cpu", **limits("4", "0")), "n1")  # 4 of 10 CPUs, and none of the memory
    made.place(pod("both", **limits("2", "2Gi")), "n2")  # a fifth of each: as much is allocated
    assert place(decide(pod("memory", **limits("0", "4Gi")), made)) == "n1"
    assert place(decide(pod("cpus", **limits("4", "0")), made)) == "n2"


def test_a_pod_without_requests_counts_for_a_little() -> None:
    made = cluster("", "")
    nothing: dict[str, Any] = {"containers": [{"name": "c"}]}
    made.place(pod("one", **limits("150m", "200Mi")), "n1")
    made.place(pod("two", **nothing), "n2")
    made.place(pod("three", **nothing), "n2")
    assert place(decide(pod("four", **limits("3", "3Gi")), made)) == "n1"


MIB = 2**20


@pytest.mark.parametrize(
    ("image", "mib", "nodes", "node"),
    [
        ("e.com/a:1", 1000, 1, "n2"),  # half of 1000 MiB, as one of two nodes has it
        ("e.com/a", 1000, 1, "n2"),
        ("e.com/b:1", 1000, 1, "n1"),
        ("e.com/a:1", 40, 1, "n1"),  # half of it is below 23 MiB
        ("e.com/a:1", 1000, 2, "n1"),
    ],
)
def test_a_pod_goes_where_its_large_images_are(image: str, mib: int, nodes: int, node: str) -> None:
    made = cluster("", "")
    names = ["e.com/a@sha256:1", "e.com/a:1", "e.com/a:latest"]
    for name in ("n2", "n1")[:nodes]:
        made.set_images(name, [{"names": names, "sizeBytes": mib * MIB}])
    made.place(pod("busy", cpu="1"), "n2")
    assert place(decide(pod("p", containers=[{"name": "c", "image": image}]), made)) == node


def test_the_images_of_a_gone_node_do_not_count() -> None:
    made = cluster("", "", "")
    for name in ("n1", "n2"):
        made.set_images(name, [{"names": ["e.com/a:1"], "sizeBytes": MIB}])
    made.set_images("n2", [])
    made.remove_node("n1")
    assert +made.image_nodes == {}
