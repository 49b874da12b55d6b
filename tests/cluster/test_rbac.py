"""The rights in deploy/rbac.yaml are those that the processes use: none is missing, and none is for show."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.cluster.driverlab import COSTS, K1, K2, NEWER, REPOSITORY, Drivers, builder, node, play, precompiled
from tests.cluster.new_nodes import REQUESTS_CRD
from tests.cluster.test_inheritance import runs, served, workload
from tests.cluster.test_pod_notices import are_told, break_card
from tests.support.kueue.cluster import KueueCluster
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, NODE_GROUPS_KEY, NODE_GROUPS_MAP, SLICE_CONDITION
from tessera.api.nodes.node_groups import NEW_NODE_REASON
from tessera.api.pod_annotations import POD_GROUPS
from tessera.api.queues import QUEUES
from tessera.controller.cluster.volumes import LOCAL_MODEL_NODES
from tessera.controller.defaults import RECORD
from tessera.doctor.manifests import install_manifests
from tessera.driver.kernels import CONFIG_MAP
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.kube.resources import (
    CAPI_MACHINES,
    CLONE_SETS,
    CONFIGMAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODECLAIMS,
    NODES,
    OPENSHIFT_MACHINES,
    OPENSHIFT_PROXIES,
    PODS,
    REPLICASETS,
    SECRETS,
    STATEFULSETS,
)
from tessera.kueue.configuration import make_configuration
from tessera.mig.models import model_by_short_name
from tessera.nvml.errors import UnknownNvmlError
from tessera_lab.cluster.options import SYSTEMS
from tessera_lab.drivers.driver_catalogue import driver_image
from tessera_lab.drivers.driver_containers import broken_driver
from tessera_lab.kueue.stand_in import StandIn

PREFIX = "system:serviceaccount:tessera-system:"
ACCOUNTS = ("tessera-controller", "tessera-webhook", "tessera-agent")
#: (verb, resource.group/subresource, namespace or empty for the whole cluster)
Right = tuple[str, str, str]


def granted(account: str) -> set[Right]:
    """Returns the rights that the manifests give a service account."""
    objects = install_manifests()
    rules = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["rules"]
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"}
    }
    found: set[Right] = set()
    for binding in objects:
        if binding["kind"] in {"RoleBinding", "ClusterRoleBinding"} and binding["subjects"][0]["name"] == account:
            namespace = binding["metadata"].get("namespace", "")
            role = binding["roleRef"]
            scope = namespace if role["kind"] == "Role" else ""
            for rule in rules[role["kind"], scope, role["name"]]:
                found |= {(verb, resource, namespace) for verb in rule["verbs"] for resource in _resources(rule)}
    return found


def _resources(rule: dict[str, Any]) -> Iterator[str]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            plural, _, subresource = resource.partition("/")
            yield (f"{plural}.{group}" if group else plural) + (f"/{subresource}" if subresource else "")


async def new_nodes_are_asked_for(lab: VirtualLab) -> None:
    """By a ProvisioningRequest, and not any more once its pod is gone."""
    await lab.client.create(CRDS.as_dicts(), REQUESTS_CRD)
    groups = "groups: [{name: a, selector: {pool: a}, cards: {model: A100-40GB, count: 2}}]"
    file = {"metadata": {"name": NODE_GROUPS_MAP}, "data": {NODE_GROUPS_KEY: groups}}
    await lab.client.create(CONFIGMAPS, file, "tessera-system")
    await lab.create("large", {"nvidia.com/mig-7g.40gb": 1}, nodeSelector={"pool": "a"})
    await lab.until(lambda: lab.events_of("large", NEW_NODE_REASON), "a node is asked for")
    await lab.clock.sleep(10)
    await lab.delete("large")


async def a_job_runs(lab: VirtualLab) -> None:
    """Until its deadline, which is read for forecasts."""
    template = {"spec": manifest("job", {"nvidia.com/mig-1g.5gb": 1}, restartPolicy="Never")["spec"]}
    job = {"metadata": {"name": "job"}, "spec": {"activeDeadlineSeconds": 120, "template": template}}
    await lab.client.create(JOBS.as_dicts(), job, "default")
    await lab.clock.sleep(180)
    await lab.client.delete(JOBS, "job", "default", propagation="Background")


def used(lab: VirtualLab, account: str) -> set[Right]:
    """Returns the rights that a service account used, in the form of :func:`granted`."""
    rights = granted(account)
    found: set[Right] = set()
    for entry in lab.cluster.server.audit:
        if entry.user == PREFIX + account and entry.resource:  # what is no resource (discovery) everybody may read
            assert entry.code not in {403, 422}, f"{account} was refused: {entry}"
            what = entry.resource + (f"/{entry.subresource}" if entry.subresource else "")
            wide = (entry.verb, what, "")
            found.add(wide if wide in rights else (entry.verb, what, entry.namespace))
    return found


#: Asked for only where registries are real, and not the lab's catalogue: see tests/driver/registry.
WITH_REAL_REGISTRIES = {("get", "secrets", "tessera-system")}
#: Asked by a port, which no process of this lab opens: tests/access, tests/e2e/test_open_ports.py.
FOR_PAGES = {
    ("create", "tokenreviews.authentication.k8s.io", ""),
    ("create", "subjectaccessreviews.authorization.k8s.io", ""),
}
#: OpenShift's proxy, through which its nodes reach registries and mirrors.
PROXY: dict[str, Any] = {"metadata": {"name": "cluster"}, "spec": {"httpsProxy": "http://proxy.example.com:3128"}}


def used_for_drivers(folder: Path) -> set[Right]:
    """Another day: drivers come, are built, are replaced under a workload, fail, and are taken away.

    One of the nodes runs RHCOS behind a proxy.
    """
    account, found = "tessera-controller", set[Right]()
    coreos = SYSTEMS["rhcos4.15"]

    async def scenario(lab: Drivers) -> None:
        await lab.client.create(CRDS, served(OPENSHIFT_PROXIES))
        await lab.client.create(OPENSHIFT_PROXIES, PROXY)
        crd = {"metadata": {"name": "unused"}, "spec": {"driverType": "gpu", "image": "driver"}}
        await lab.client.create(NVIDIA_DRIVERS, crd)
        await lab.policy(annotations={"tessera.dev/driver-build-repository": "registry.local/built"})
        await lab.config_map(CONFIG_MAP, {"ubuntu22.04": K2})
        await lab.served("a", "b", "c", seconds=3600)
        made = (await lab.client.list(DAEMONSETS.as_dicts(), "tessera-system")).items
        assert [through_the_proxy(each) for each in made].count(True) == 1
        await lab.create_owned("web", {"nvidia.com/gpu": 1}, {})
        await lab.until(lambda: lab.ready_of("web"), "the workload runs")
        await lab.policy(version=NEWER)
        await lab.until(lambda: [made.version for made in lab.driver_sets] == [NEWER] * 3, "all have it", 7200)
        await lab.policy(version="550.54.14")
        await lab.until(lambda: lab.condition("GpuDriverReady", "a")[1] == "Upgrading", "the next one is tried", 7200)
        await lab.clock.sleep(1800)
        await lab.client.delete(CLUSTER_POLICIES, "cluster-policy")
        await lab.delete_owned("web")
        await lab.until(lambda: not lab.driver_sets, "nothing is left once nobody uses it")
        found.update(used(lab, account))

    bad = msgspec.structs.replace(driver_image("550.54.14", COSTS), program=broken_driver("modprobe: invalid argument"))
    images = precompiled(K1) | precompiled(K1, NEWER) | precompiled(K2, NEWER) | builder()
    images |= {f"{REPOSITORY}:550.54.14-{kernel}-ubuntu22.04": bad for kernel in (K1, K2)}
    images |= precompiled(coreos.kernel, system="rhcos4.15") | precompiled(coreos.kernel, NEWER, system="rhcos4.15")
    play(folder, scenario, [node("a", K1), node("b", K2), node("c", coreos.kernel, coreos.os_image)], images)
    return found


def used_with_kueue(in_lab: InLab) -> set[Right]:
    """Kueue asks if a pod can be placed, and admits it."""
    found = set[Right]()

    async def scenario(lab: VirtualLab) -> None:
        charges = make_configuration(model_by_short_name("A100-40GB").profile_names, "v1beta2")["resources"]
        kueue = StandIn(lab.client, lab.clock, resources=charges, version="v1beta2")
        await kueue.install(lab.cluster.reviewers, "kueue-mutating-webhook")
        reconciling = asyncio.create_task(kueue.run())
        cluster = KueueCluster(lab.client, lab.clock, "v1beta2", "team-a", lab.cluster.server)

        async def runs() -> bool:
            return await cluster.running() == ["first"]

        try:
            await cluster.open_queue(80, checked=True)
            await cluster.pod("first", "7g.40gb")
            await cluster.until(runs, "the pod runs")
        finally:
            reconciling.cancel()
            await asyncio.wait([reconciling])
        found.update(used(lab, "tessera-controller"))

    in_lab(scenario, nodes="1xA100-40GB", own=True)
    return found


def through_the_proxy(made: dict[str, Any]) -> bool:
    """True if containers of a DaemonSet use OpenShift's proxy for addresses outside."""
    wanted = {"name": "HTTPS_PROXY", "value": PROXY["spec"]["httpsProxy"]}
    return any(wanted in each.get("env", ()) for each in made["spec"]["template"]["spec"]["containers"])


async def refused_by_its_scheduler(lab: VirtualLab, name: str) -> None:
    """A pod of another scheduler, which finds no node for it, until its slices are taken back."""
    await lab.create(name, {"nvidia.com/mig-1g.5gb": 1}, schedulerName="other")
    await lab.until(lambda: lab.is_free(name), "it is pinned")
    says = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    await lab.client.merge_patch(PODS, name, {"status": {"conditions": [says]}}, "default", subresource="status")
    await lab.until(
        lambda: any(each.type == SLICE_CONDITION for each in lab.existing_pod(name).status.conditions), "it is told so"
    )


async def owners_make_waiting_pods_anew(lab: VirtualLab) -> None:
    """The new pods take over the ages of those before."""
    for resource in (REPLICASETS, STATEFULSETS):
        labels = {"app": resource.plural}
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/mig-7g.40gb": 1}}}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": labels}, "serviceName": "s", "template": template, "replicas": 1}
        await lab.client.create(resource.as_dicts(), {"metadata": {"name": resource.plural}, "spec": spec}, "default")

        def pods(app: str = resource.plural) -> list[Any]:
            return [pod for pod in lab.pods.cache.values() if pod.metadata.labels.get("app") == app]

        def one_waits(pods: Callable[[], list[Any]] = pods) -> bool:
            return any(lab.events_of(pod.metadata.name, "SliceWaiting") for pod in pods())

        await lab.until(one_waits, "its pod waits")
        (first,) = pods()
        await lab.delete(first.metadata.name)
        uid = first.metadata.uid
        await lab.until(lambda pods=pods, uid=uid: any(pod.metadata.uid != uid for pod in pods()), "it is made anew")
        await lab.clock.sleep(2)
        await lab.client.delete(resource, resource.plural, "default", propagation="Background")
        await lab.until(lambda pods=pods: not pods(), "its pods are gone")


async def a_service_is_updated(lab: VirtualLab) -> None:
    """Its next pod gets the slices of the one before, though another pod waits for them."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    await lab.client.create(DEPLOYMENTS.as_dicts(), workload("i:1", "7g.40gb", 1, strategy=strategy), "default")
    await lab.until(lambda: runs(lab, "i:1", 1), "the service runs")
    await lab.create("waits", {"nvidia.com/mig-7g.40gb": 1})
    await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "another pod waits")
    updated = {"spec": {"template": workload("i:2", "7g.40gb", 1)["spec"]["template"]}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", updated, "default")
    await lab.until(lambda: runs(lab, "i:2", 1), "the service is updated")
    await lab.delete("waits")
    await lab.client.delete(DEPLOYMENTS, "svc", "default", propagation="Background")


async def a_clone_set_makes_a_pod_anew(lab: VirtualLab) -> None:
    """Its next pod, which OpenKruise would make, gets the slices of the one before, though another pod waits."""
    body = {"metadata": {"name": "clones"}, "spec": {"replicas": 1}}
    made = await lab.client.create(CLONE_SETS.as_dicts(), body, "default")
    reference = {"apiVersion": CLONE_SETS.api_version, "kind": "CloneSet", "name": "clones", "controller": True}
    owner = {"ownerReferences": [{**reference, "uid": made["metadata"]["uid"]}]}
    bodies = [manifest(name, {"nvidia.com/mig-7g.40gb": 1}) for name in ("clones-a", "clones-b")]
    first, second = [{**each, "metadata": {**each["metadata"], **owner}} for each in bodies]
    await lab.client.create(PODS.as_dicts(), first, "default")
    await lab.running("clones-a")
    await lab.clock.sleep(20)
    await lab.create("waits", {"nvidia.com/mig-7g.40gb": 1})
    await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "another pod waits")
    await lab.client.delete(PODS, "clones-a", "default")
    await lab.client.create(PODS.as_dicts(), second, "default")
    await lab.running("clones-b")
    assert lab.phase("waits") == "Pending"
    await lab.delete("waits")
    await lab.delete("clones-b")


async def an_add_on_was_there_first(lab: VirtualLab) -> None:
    """A controller that leads for the first time in a cluster with a namespace of an add-on."""
    await lab.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "cilium"}})
    await lab.client.delete(CONFIGMAPS, RECORD, "tessera-system")
    await lab.kill()


def test_every_right_is_used_and_every_use_is_granted(in_lab: InLab, tmp_path: Path) -> None:
    """A day in the life of a cluster: slices come and go and fail, nodes too, and a certificate is lost."""

    async def scenario(lab: VirtualLab) -> None:
        for kind in (CAPI_MACHINES, OPENSHIFT_MACHINES, NODECLAIMS, POD_GROUPS, CLONE_SETS, LOCAL_MODEL_NODES):
            await lab.client.create(CRDS, served(kind))
        queue = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind, "metadata": {"name": "default"}, "spec": {}}
        await lab.client.create(QUEUES, queue)
        await lab.create("first", {"nvidia.com/mig-7g.40gb": 1}, command="sleep 300")
        await lab.running("first")
        await lab.create("second", {"nvidia.com/mig-3g.20gb": 1})
        await lab.until(lambda: lab.events_of("second", "SliceWaiting"), "the second waits")
        await lab.running("second")
        await lab.create("third", {"nvidia.com/mig-7g.40gb": 1})
        for cordoned in (True, False):
            told = sum(event.count for event in lab.events_of("third", "SliceWaiting"))
            await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": cordoned}})
            await lab.until(
                lambda told=told: sum(event.count for event in lab.events_of("third", "SliceWaiting")) > told,
                "the reason changed",
            )
        await lab.delete("second")
        machine = lab.machine()
        for call, times in (("create_gpu_instance", 1), ("create_compute_instance", 1), ("create_gpu_instance", 2)):
            machine.heal()
            machine.fail(call, UnknownNvmlError, times=None)
            await lab.until(lambda call=call, times=times: lab.told_times("third", "SliceFailed", call) == times, call)
        machine.heal()
        await lab.running("third")
        break_card(lab, xid=63)
        await are_told(lab, ["third"], "GpuDegraded")
        await are_told(lab, ["third"], "GpuRecovered", 300)
        await owners_make_waiting_pods_anew(lab)
        await lab.delete("third")
        await a_job_runs(lab)
        await refused_by_its_scheduler(lab, "fourth")
        await lab.delete("fourth")
        await lab.empty()
        await lab.leave("node-1")
        await lab.join("node-1")
        await lab.until(lambda: lab.offers("node-1"), "the node is back")
        await lab.client.delete(INSTASLICES, "node-1", INSTASLICE_NAMESPACE)
        await lab.until(lambda: lab.offers("node-1"), "the object is made anew")
        await lab.client.delete(NODES, "node-2")
        await lab.until(lambda: f"{INSTASLICE_NAMESPACE}/node-2" not in lab.slices.cache, "its object goes with it")
        await new_nodes_are_asked_for(lab)
        await a_service_is_updated(lab)
        await a_clone_set_makes_a_pod_anew(lab)
        await lab.client.merge_patch(SECRETS, "tessera-webhook-cert", {"data": {"tls.crt": ""}}, "tessera-system")
        await an_add_on_was_there_first(lab)
        await lab.clock.sleep(60)
        found.update({account: used(lab, account) for account in ACCOUNTS})

    found: dict[str, set[Right]] = {}
    in_lab(scenario, nodes="1xA100-40GB,1xA30", own=True)
    found["tessera-controller"] |= used_for_drivers(tmp_path) | used_with_kueue(in_lab) | WITH_REAL_REGISTRIES
    for account, rights in found.items():
        assert sorted(rights - granted(account)) == [], account
        assert sorted(granted(account) - rights - FOR_PAGES) == [], account
