"""Many workloads with a rule each, as in large clusters: every rule holds, and a step plans many pods."""

from typing import Any

import msgspec
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import GATE
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.kube.resources import Pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"


def pod(workload: int, replica: int, node: str = "", **rules: Any) -> PodInfo:
    """A replica of a StatefulSet: bound and without slices, or behind our gate."""
    name = f"w{workload}-{replica}"
    limits = {} if node else {"nvidia.com/mig-1g.5gb": "1"}
    labels = {"app": f"w{workload}", "statefulset.kubernetes.io/pod-name": name}
    body = {
        "metadata": {"name": name, "namespace": f"team-{workload}", "uid": f"u-{name}", "labels": labels},
        "spec": {
            "nodeName": node,
            "schedulingGates": [] if node else [{"name": GATE}],
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            **rules,
        },
    }
    return read_pod(msgspec.convert(body, Pod))


def selector(workload: int) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": f"w{workload}"}}}


def apart(workload: int) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{**selector(workload), "topologyKey": HOST}]}}}


def spread(workload: int) -> dict[str, Any]:
    rule = {**selector(workload), "topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [rule]}


def _add_nodes(cluster: SlicerCluster, nodes: int) -> None:
    for number in range(nodes):
        labels = {"nvidia.com/mig.config": "dynamic", HOST: f"n{number}", "zone": f"z{number % 3}"}
        cluster.node(f"n{number}", labels=labels)


def test_every_rule_of_200_workloads_holds_and_few_steps_plan_them(cluster: SlicerCluster) -> None:
    _add_nodes(cluster, 120)
    workloads, replicas = 200, 20
    for workload in range(workloads):
        for replica in range(replicas):
            rules = apart(workload) if workload % 2 else spread(workload)
            cluster.put(pod(workload, replica, f"n{(workload + replica * 5) % 120}", **rules))
    while cluster.slicer.has_work:
        cluster.slicer.decide()
    new = [
        (
            workload,
            cluster.put(pod(workload, replicas + more, **(apart(workload) if workload % 2 else spread(workload)))),
        )
        for workload in range(workloads)
        for more in range(2)
    ]
    steps = 0
    while cluster.slicer.has_work:
        cluster.slicer.decide()
        steps += 1
    assert steps <= 10
    for workload, one in new:
        home = cluster.slicer.state.allocations.current_of(one.uid).node
        others = [
            each.node or cluster.slicer.state.allocations.current_of(each.uid).node
            for each in cluster.slicer.state.cluster.pods.values()
            if each.namespace == one.namespace and each.uid != one.uid
        ]
        if workload % 2:
            assert home not in others
        else:
            zones = [cluster.slicer.state.cluster.nodes[node].labels["zone"] for node in (*others, home)]
            counts = [zones.count(f"z{i}") for i in range(3)]
            assert max(counts) - min(counts) <= 1


def test_a_pod_that_waits_for_another_is_placed_however_many_rules_were_judged_since(cluster: SlicerCluster) -> None:
    _add_nodes(cluster, 3)
    term = {"labelSelector": {"matchLabels": {"app": "w500"}}, "topologyKey": HOST, "namespaceSelector": {}}
    one = cluster.put(pod(0, 0, affinity={"podAffinity": {REQUIRED: [term]}}))
    cluster.settle()
    assert cluster.where(one) == []
    for workload in range(1, 300):
        cluster.remove(cluster.put(pod(workload, 0, **apart(workload))))
        cluster.put(pod(workload, 0, **apart(workload)))
        cluster.settle()
        cluster.remove(cluster.pods[f"u-w{workload}-0"])
    cluster.settle()
    cluster.put(pod(500, 0, "n1"))
    cluster.settle()
    assert [place[0] for place in cluster.where(one)] == ["n1"]
