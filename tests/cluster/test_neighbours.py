"""A pod is promised slices only where the scheduler takes it; where it does not after all, they go to the next."""

from typing import Any

import pytest
import yaml
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.cli.main import main
from tessera.kube.resources import (
    DEPLOYMENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    STORAGE_CLASSES,
)
from tessera.kube.resources.meta import Resource
from tessera_lab.workloads.storage import PROVISIONER

PRIORITIES: Resource[dict[str, Any]] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict
)
SLICE = {"nvidia.com/mig-1g.5gb": 1}
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def template(app: str, limits: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    resources = {"limits": SLICE if limits is None else limits}
    container = {"name": "c0", "image": "busybox", "command": ["sleep", "infinity"], "resources": resources}
    container["ports"] = spec.pop("ports", [])
    settings = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"labels": {"app": app}}, "spec": {**settings, **spec}}


async def replicas(lab: VirtualLab, app: str, count: int, limits: dict[str, Any] | None = None, **spec: Any) -> None:
    body = {
        "metadata": {"name": app},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": app}},
            "template": template(app, limits, **spec),
        },
    }
    await lab.client.create(REPLICASETS.as_dicts(), body, "default")


def of(lab: VirtualLab, app: str) -> list[Any]:
    return [pod for pod in lab.pods.cache.values() if pod.metadata.labels.get("app") == app]


async def run(lab: VirtualLab, app: str, count: int) -> list[str]:
    """Waits until so many pods run; returns their nodes, sorted."""

    def ready() -> bool:
        running = [pod for pod in of(lab, app) if lab.ready(pod.metadata.name)]
        return len(running) == count

    await lab.until(ready, f"{count} pods of {app} run")
    return sorted(pod.spec.node_name for pod in of(lab, app) if pod.spec.node_name)


async def zones(lab: VirtualLab, *names: str) -> None:
    for number, zone in enumerate(names, 1):
        await lab.client.merge_patch(NODES, f"node-{number}", {"metadata": {"labels": {ZONE: zone}}})
    await lab.until(
        lambda: all(lab.existing_node(f"node-{n}").metadata.labels.get(ZONE) for n, _ in enumerate(names, 1)),
        "the nodes have their zones",
    )


def test_a_third_replica_waits_without_a_slice_until_a_port_is_free(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await replicas(lab, "web", 2, ports=[{"containerPort": 80, "hostPort": 8080}])
        await run(lab, "web", 2)
        await lab.create("third", SLICE, hostNetwork=False)
        await lab.running("third")
        body = template("late", ports=[{"containerPort": 80, "hostPort": 8080}])
        body["metadata"]["name"] = "late"
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.until(lambda: lab.events_of("late", "SliceWaiting"), "it is told why it waits")
        assert "free ports" in lab.events_of("late", "SliceWaiting")[0].message
        assert lab.existing_pod("late").metadata.uid not in {**lab.results("node-1"), **lab.results("node-2")}
        await lab.delete_owned("web")
        await lab.running("late")

    in_lab(scenario, nodes="2*1xA100-40GB")


def test_anti_affinity_keeps_replicas_apart_in_both_directions(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        term = {"labelSelector": {"matchLabels": {"app": "lone"}}, "topologyKey": HOST}
        noise = {"labelSelector": {"matchLabels": {"app": "noise"}}, "topologyKey": HOST}
        await replicas(lab, "lone", 2, affinity={"podAntiAffinity": {REQUIRED: [term, noise]}})
        assert await run(lab, "lone", 2) == ["node-1", "node-2"]
        await replicas(lab, "noise", 2)
        assert await run(lab, "noise", 2) == ["node-3", "node-3"]

    in_lab(scenario, nodes="3*1xA100-40GB")


def test_pods_are_spread_over_zones(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await zones(lab, "a", "a", "b", "c")
        rule = {
            "maxSkew": 1,
            "minDomains": 3,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "wide"}},
        }
        await replicas(lab, "wide", 3, topologySpreadConstraints=[rule])
        homes = await run(lab, "wide", 3)
        assert {"node-1": "a", "node-2": "a"}.get(homes[0]) == "a"
        assert homes[1:] == ["node-3", "node-4"]

    in_lab(scenario, nodes="4*1xA100-40GB")


def test_numbered_pods_with_claims_get_slices_where_their_volumes_are(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        item = {
            "metadata": {"name": "local"},
            "provisioner": PROVISIONER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"topologyKey": HOST},
        }
        await lab.client.create(STORAGE_CLASSES.as_dicts(), item)
        claim: dict[str, Any] = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}
        claim["resources"] = {"requests": {"storage": "1Gi"}}
        spec = {
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "set"}},
            "template": template("set", {"nvidia.com/mig-7g.40gb": 1}),
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": claim}],
        }
        await lab.client.create(STATEFULSETS.as_dicts(), {"metadata": {"name": "set"}, "spec": spec}, "default")
        assert await run(lab, "set", 2) == ["node-1", "node-2"]
        before = {pod.metadata.name: pod.spec.node_name for pod in of(lab, "set")}
        lives = {pod.metadata.uid for pod in of(lab, "set")}
        for name in before:
            await lab.client.delete(PODS, name, "default")
        await lab.until(lambda: not lives & {pod.metadata.uid for pod in of(lab, "set")}, "they are gone")
        await run(lab, "set", 2)
        assert {pod.metadata.name: pod.spec.node_name for pod in of(lab, "set")} == before

    in_lab(scenario, nodes="2*1xA100-40GB")


def test_a_pod_waits_for_its_claim_and_says_so(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        volume = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}
        await lab.create("p", SLICE, volumes=[volume])
        await lab.until(lambda: lab.events_of("p", "SliceWaiting"), "it is told why it waits")
        assert 'persistentvolumeclaim "data" not found' in lab.events_of("p", "SliceWaiting")[0].message
        item = {"metadata": {"name": "now"}, "provisioner": PROVISIONER, "volumeBindingMode": "Immediate"}
        await lab.client.create(STORAGE_CLASSES.as_dicts(), item)
        spec = {"storageClassName": "now", "accessModes": ["ReadWriteOnce"]}
        body = {"metadata": {"name": "data"}, "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}}}
        await lab.client.create(PERSISTENT_VOLUME_CLAIMS.as_dicts(), body, "default")
        await lab.running("p")

    in_lab(scenario, nodes="1xA100-40GB")


def slice_condition(lab: VirtualLab, name: str) -> tuple[str, str] | None:
    """Status and reason of a pod's condition about its slices."""
    pod = lab.pod(name)
    found = [each for each in pod.status.conditions if each.type == "tessera.dev/SliceAvailable"] if pod else []
    return (found[0].status, found[0].reason) if found else None


def unjudged() -> dict[str, Any]:
    """Terms of anti-affinity of which the controller considers the first; the scheduler reads them all."""
    harmless = [{"labelSelector": {"matchLabels": {"none": str(number)}}, "topologyKey": HOST} for number in range(20)]
    last = {"labelSelector": {"matchLabels": {"app": "refused"}}, "topologyKey": HOST}
    return {"podAntiAffinity": {REQUIRED: [*harmless, last]}}


def test_a_refused_pod_is_made_anew_elsewhere(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        holder = template("holder", {}, affinity=unjudged(), nodeSelector={HOST: "node-1"})
        holder["metadata"]["name"] = "holder"
        await lab.client.create(PODS.as_dicts(), holder, "default")
        await lab.running("holder")
        await lab.create("filler", SLICE, nodeSelector={HOST: "node-1"})
        await lab.running("filler")
        await replicas(lab, "refused", 1)
        assert await run(lab, "refused", 1) == ["node-2"]
        taken = [event for event in lab.events.cache.values() if event.reason == "SliceReclaimed"]
        assert "existing pods anti-affinity rules" in taken[0].message
        await lab.until(lambda: len(lab.results("node-1")) == 1, "the slice is free again")

    in_lab(scenario, nodes="2*1xA100-40GB")


def test_the_slice_of_a_refused_pod_that_nobody_makes_anew_goes_to_the_next(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        holder = template("holder", {}, affinity=unjudged())
        holder["metadata"]["name"] = "holder"
        await lab.client.create(PODS.as_dicts(), holder, "default")
        await lab.running("holder")
        body = template("refused", {"nvidia.com/mig-7g.40gb": 1})
        body["metadata"]["name"] = "first"
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.until(lambda: lab.is_free("first"), "it was pinned")
        await lab.create("second", {"nvidia.com/mig-7g.40gb": 1}, terminationGracePeriodSeconds=1)
        await lab.running("second")
        assert lab.events_of("first", "SliceReclaimed")
        assert slice_condition(lab, "first") == ("False", "SliceReclaimed")
        assert not lab.existing_pod("first").spec.node_name
        await lab.client.delete(PODS, "holder", "default")
        await lab.client.delete(PODS, "second", "default")
        await lab.running("first")
        await lab.until(lambda: slice_condition(lab, "first") == ("True", "SlicePromised"), "it says so")
        assert slice_condition(lab, "second") is None
        assert len(lab.hardware()) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_pushes_a_placeholder_of_the_printed_manifest_aside(
    in_lab: InLab, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["--pods-per-hour", "1", "--time-to-gpu", "9m", "--priority", "-10", "-o", "placeholders"]
    assert main(["autoscaler", "warm", *wanted]) == 0
    priority_class, deployment = yaml.safe_load_all(capsys.readouterr().out)

    async def scenario(lab: VirtualLab) -> None:
        for node in lab.cluster.nodes:
            await lab.becomes({"nvidia.com/gpu": 1}, node)
        await lab.client.create(PRIORITIES, priority_class)
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment, "default")

        def warm() -> list[str]:
            pods = [pod for pod in lab.pods.cache.values() if pod.spec.priority == -10]
            return sorted(pod.spec.node_name for pod in pods if lab.ready(pod.metadata.name))

        await lab.until(lambda: warm() == ["node-1", "node-2"], "a placeholder keeps each node")
        await replicas(lab, "real", 1, {"nvidia.com/gpu": 1}, tolerations=[{"operator": "Exists"}])
        await run(lab, "real", 1)
        await lab.until(lambda: len(warm()) == 1, "one placeholder is left, and one waits for a new node")
        assert any(event.reason == "Preempted" for event in lab.events.cache.values())

    in_lab(scenario, nodes="2*1xA100-40GB", mig_config="")
