"""The policies of ``deploy/``: what the token of an agent or a driver pod may write, and what not.

The policies are those files with names of this test's own, so that a cluster where Tessera runs is left alone. The
accounts get more rights than Tessera's have: what is refused here is refused by the policies.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.conformance_api import APPLY, CRDS, MERGE, STRATEGIC, TIMEOUT, Answer, Api

from tessera.api.names import QUOTA_RESOURCE

DEPLOY = Path(__file__).parents[2] / "deploy"
GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
INSTASLICES = "instaslices.inference.redhat.com"


class TwoNodes(msgspec.Struct):
    """Two nodes, and clients with two tokens: of a pod on the first node, and of no pod."""

    namespace: str
    mine: str
    other: str
    agent: Api
    driver: Api
    unbound: Api

    def node(self, name: str, subresource: str = "") -> str:
        return f"/api/v1/nodes/{name}" + (f"/{subresource}" if subresource else "")

    @property
    def instaslices(self) -> str:
        return f"/apis/inference.redhat.com/v1alpha1/namespaces/{self.namespace}/instaslices"

    @property
    def events(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/events"


@pytest.fixture
async def two_nodes(
    api: Api, namespace: str, unique: str, as_token: Callable[[str], Api], cleanup: Callable[[str], None]
) -> AsyncIterator[TwoNodes]:
    for folder, file in (("policies", "agent"), ("policies", "driver"), ("options", "evict"), ("options", "claims")):
        text = (DEPLOY / folder / f"{file}.yaml").read_text().replace("tessera-system", namespace)
        for each in yaml.load_all(text, yaml.CSafeLoader):
            if not each["kind"].startswith("ValidatingAdmissionPolicy"):
                continue
            path = POLICIES if each["kind"] == "ValidatingAdmissionPolicy" else BINDINGS
            each["metadata"]["name"] = name = f"{unique}-{file}"
            if path == BINDINGS:
                each["spec"]["policyName"] = name
            cleanup(f"{path}/{name}")
            (await api("POST", path, each)).ok()
    if (await api("GET", f"{CRDS}/{INSTASLICES}")).status == 404:
        cleanup(f"{CRDS}/{INSTASLICES}")
        (await api("POST", CRDS, yaml.load((DEPLOY / "crds" / "instaslices.yaml").read_text(), yaml.CSafeLoader))).ok()
        await api.until(
            f"/apis/inference.redhat.com/v1alpha1/namespaces/{namespace}/instaslices",
            lambda answer: answer.status == 200,
        )
    names = [f"{unique}-1", f"{unique}-2"]
    for name in names:
        cleanup(f"/api/v1/nodes/{name}")
        (await api("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"team": "a"}}})).ok()
    cleanup(f"{RBAC}/clusterroles/{unique}")
    cleanup(f"{RBAC}/clusterrolebindings/{unique}")
    rules = [{"apiGroups": ["", "inference.redhat.com", "resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    (await api("POST", f"{RBAC}/clusterroles", {"metadata": {"name": unique}, "rules": rules})).ok()
    accounts = ["tessera-agent", "tessera-driver"]
    binding = {
        "metadata": {"name": unique},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": unique},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": each} for each in accounts],
    }
    (await api("POST", f"{RBAC}/clusterrolebindings", binding)).ok()
    core = f"/api/v1/namespaces/{namespace}"

    async def token(account: str, pod: str = "") -> Api:
        request: dict[str, Any] = {"spec": {"expirationSeconds": 600}}
        if pod:
            body = {
                "metadata": {"name": pod},
                "spec": {
                    "nodeName": names[0],
                    "serviceAccountName": account,
                    "containers": [{"name": "a", "image": "e.com/a:1"}],
                },
            }
            uid = (await api("POST", f"{core}/pods", body)).ok()["metadata"]["uid"]
            request["spec"]["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        answer = await api("POST", f"{core}/serviceaccounts/{account}/token", request)
        return as_token(answer.ok()["status"]["token"])

    for account in accounts:
        (await api("POST", f"{core}/serviceaccounts", {"metadata": {"name": account}})).ok()
    found = TwoNodes(
        namespace=namespace,
        mine=names[0],
        other=names[1],
        agent=await token("tessera-agent", "agent"),
        driver=await token("tessera-driver", "driver"),
        unbound=await token("tessera-agent"),
    )
    for who in (found.agent, found.driver):
        async with asyncio.timeout(TIMEOUT):  # rights and policies need a moment until they count
            probe = {"metadata": {"labels": {"x": "y"}}}
            while "denied request" not in str(
                (await who("PATCH", f"{found.node(found.other)}?dryRun=All", probe, content=MERGE)).body
            ):
                pass
    yield found
    for pod in ("agent", "driver"):
        await api("DELETE", f"{core}/pods/{pod}?gracePeriodSeconds=0")


def denied(answer: Answer, *words: str) -> None:
    """The answer is a refusal by a policy that says so."""
    text = answer.refused(403, "Forbidden")
    assert "ValidatingAdmissionPolicy" in text
    for word in words:
        assert word in text


async def test_an_agent_labels_its_own_node(api: Api, two_nodes: TwoNodes) -> None:
    labels = {
        "nvidia.com/gpu.product": "A100",
        "nvidia.com/mig.config.state": "success",
        "nvidia.com/mig-1g.5gb.count": "7",
        "nvidia.com/cuda.driver-version.full": "550.54.14",
        "nvidia.com/gpu.compute.major": "8",
        "tessera.dev/gpu.nvlink": "true",
        "tessera.dev/count.NVIDIA-A100-SXM4-40GB": "4",
    }
    annotations = {
        "tessera.dev/offers": "[]",
        "tessera.dev/cards": "{}",
        "tessera.dev/card-links": "{}",
        "tessera.dev/preflight": "[]",
    }
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"labels": labels, "annotations": annotations},
    }
    path = f"{two_nodes.node(two_nodes.mine)}?fieldManager=tessera-agent&force=true"
    (await two_nodes.agent("PATCH", path, body, content=APPLY)).ok()
    del labels["nvidia.com/gpu.product"]
    (await two_nodes.agent("PATCH", path, body, content=APPLY)).ok()
    shown = (await api("GET", two_nodes.node(two_nodes.mine))).ok()["metadata"]["labels"]
    assert "nvidia.com/gpu.product" not in shown
    assert shown["team"] == "a"


async def test_an_agent_writes_its_own_nodes_conditions_and_amounts(two_nodes: TwoNodes) -> None:
    condition = {"type": "GpuHealthy", "status": "True", "reason": "Ok", "message": "well"}
    body = {"apiVersion": "v1", "kind": "Node", "status": {"conditions": [condition]}}
    path = f"{two_nodes.node(two_nodes.mine, 'status')}?fieldManager=tessera-agent&force=true"
    (await two_nodes.agent("PATCH", path, body, content=APPLY)).ok()
    amounts: dict[str, Any] = {QUOTA_RESOURCE: "160Gi", "nvidia.com/gpu": "4"}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    (await two_nodes.agent("PATCH", two_nodes.node(two_nodes.mine, "status"), patch, content=MERGE)).ok()
    gone: dict[str, Any] = dict.fromkeys(amounts)
    patch = {"status": {"capacity": gone, "allocatable": gone}}
    (await two_nodes.agent("PATCH", two_nodes.node(two_nodes.mine, "status"), patch, content=MERGE)).ok()


NODE_ATTACKS: dict[str, tuple[str, Any]] = {
    "label of placement": ("", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    "another's label": ("", {"metadata": {"labels": {"team": None}}}),
    "layout": ("", {"metadata": {"labels": {"nvidia.com/mig.config": "all-1g.5gb"}}}),
    "driver set": ("", {"metadata": {"labels": {"tessera.dev/driver-set": "x"}}}),
    "upgrade state": ("", {"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}}),
    "annotation": ("", {"metadata": {"annotations": {"a": "b"}}}),
    "spared faults": ("", {"metadata": {"annotations": {"tessera.dev/spared-faults": "[]"}}}),
    "cordon of a card": ("", {"metadata": {"annotations": {"tessera.dev/cordon.GPU-1": "no"}}}),
    "taint": ("", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}),
    "cordon": ("", {"spec": {"unschedulable": True}}),
    "finalizer": ("", {"metadata": {"finalizers": ["example.com/never"]}}),
    "label by status": ("status", {"metadata": {"labels": {"a": "b"}}}),
    "address": ("status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}}),
    "kubelet's port": ("status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1234}}}}),
    "kubelet's amount": ("status", {"status": {"capacity": {"cpu": "9000"}}}),
    "kubelet's condition": ("status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    "the controller's condition": (
        "status",
        {"status": {"conditions": [{"type": "GpuDriverReady", "status": "True"}]}},
    ),
}


@pytest.mark.parametrize("name", NODE_ATTACKS)
async def test_an_agent_changes_nothing_else_of_its_node(two_nodes: TwoNodes, name: str) -> None:
    below, patch = NODE_ATTACKS[name]
    denied(await two_nodes.agent("PATCH", two_nodes.node(two_nodes.mine, below), patch, content=STRATEGIC))


async def test_an_agent_touches_no_other_node(two_nodes: TwoNodes) -> None:
    label = {"metadata": {"labels": {"nvidia.com/gpu.product": "A100"}}}
    words = (f"the agent of node {two_nodes.mine} may write its own nodes only, not {two_nodes.other}",)
    denied(await two_nodes.agent("PATCH", two_nodes.node(two_nodes.other), label, content=MERGE), *words)
    amount = {"status": {"capacity": {"nvidia.com/gpu": "0"}}}
    denied(await two_nodes.agent("PATCH", two_nodes.node(two_nodes.other, "status"), amount, content=MERGE), *words)
    denied(await two_nodes.agent("DELETE", two_nodes.node(two_nodes.other)), *words)
    denied(
        await two_nodes.agent("DELETE", two_nodes.node(two_nodes.mine)),
        f"may not create or delete Node {two_nodes.mine}",
    )
    denied(await two_nodes.agent("POST", "/api/v1/nodes", {"metadata": {"name": f"{two_nodes.mine}-new"}}))


async def test_a_token_without_a_node_writes_nothing(two_nodes: TwoNodes) -> None:
    label = {"metadata": {"labels": {"nvidia.com/gpu.product": "A100"}}}
    denied(await two_nodes.unbound("PATCH", two_nodes.node(two_nodes.mine), label, content=MERGE), "names no node")


async def test_an_agent_has_one_instaslice(api: Api, two_nodes: TwoNodes) -> None:
    def named(name: str) -> Any:
        return {
            "apiVersion": "inference.redhat.com/v1alpha1",
            "kind": "Instaslice",
            "metadata": {"name": name},
            "spec": {},
        }

    (await two_nodes.agent("POST", two_nodes.instaslices, named(two_nodes.mine))).ok()
    (await api("POST", two_nodes.instaslices, named(two_nodes.other))).ok()
    denied(
        await two_nodes.agent("POST", two_nodes.instaslices, named(f"{two_nodes.other}-x")), "its own instaslices only"
    )
    status = {"status": {"nodeResources": {"bootId": "b"}}}
    for name, refused in ((two_nodes.mine, False), (two_nodes.other, True)):
        answer = await two_nodes.agent("PATCH", f"{two_nodes.instaslices}/{name}/status", status, content=MERGE)
        denied(answer) if refused else answer.ok()
    denied(await two_nodes.agent("DELETE", f"{two_nodes.instaslices}/{two_nodes.other}"))
    (await two_nodes.agent("DELETE", f"{two_nodes.instaslices}/{two_nodes.mine}")).ok()


@pytest.mark.skipif(
    "TESSERA_CONFORMANCE_KUBECONFIG" not in os.environ, reason="the lab has no controller that checks types"
)
@pytest.mark.parametrize("file", ["agent", "driver", "namespaces", "pins", "pods"])
async def test_every_expression_fits_the_kinds_that_it_is_for(
    api: Api, unique: str, cleanup: Callable[[str], None], file: str
) -> None:
    policy = next(yaml.load_all((DEPLOY / "policies" / f"{file}.yaml").read_text(), yaml.CSafeLoader))
    policy["metadata"]["name"] = unique
    path = f"{POLICIES}/{unique}"
    cleanup(path)
    (await api("POST", POLICIES, policy)).ok()
    checked = await api.until(path, lambda answer: "typeChecking" in answer.body.get("status", {}))
    assert checked.body["status"]["typeChecking"] == {}


def event(name: str, about: dict[str, str], namespace: str, **more: Any) -> Any:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", **about},
        "reason": "Test",
        "message": "m",
        "type": "Normal",
        "source": {"component": "tessera-agent"},
        "reportingComponent": "tessera-agent",
        **more,
    }


async def test_an_agent_writes_events_of_its_own(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": two_nodes.namespace}
    own = event("a", about, two_nodes.namespace, reportingInstance=two_nodes.mine)
    (await two_nodes.agent("POST", two_nodes.events, own)).ok()
    (await two_nodes.agent("PATCH", f"{two_nodes.events}/a", {"count": 2}, content=MERGE)).ok()
    cleanup(f"/api/v1/namespaces/default/events/{unique}")
    node = event(unique, {"kind": "Node", "name": two_nodes.mine}, "default", reportingInstance=two_nodes.mine)
    (await two_nodes.agent("POST", "/api/v1/namespaces/default/events", node)).ok()
    theirs = event("b", about, two_nodes.namespace, reportingInstance=two_nodes.other)
    (await api("POST", two_nodes.events, theirs)).ok()
    denied(await two_nodes.agent("PATCH", f"{two_nodes.events}/b", {"count": 2}, content=MERGE), "in its own name only")
    denied(
        await two_nodes.agent("POST", two_nodes.events, {**theirs, "metadata": {"name": "c"}}), "in its own name only"
    )
    forged = {**own, "metadata": {"name": "d"}, "source": {"component": "kubelet"}}
    denied(await two_nodes.agent("POST", two_nodes.events, forged), "in its own name only")
    deployment = {"kind": "Deployment", "name": "x", "namespace": two_nodes.namespace}
    denied(
        await two_nodes.agent(
            "POST", two_nodes.events, event("e", deployment, two_nodes.namespace, reportingInstance=two_nodes.mine)
        )
    )
    other = event("f", {"kind": "Node", "name": two_nodes.other}, "default", reportingInstance=two_nodes.mine)
    denied(await two_nodes.agent("POST", "/api/v1/namespaces/default/events", other))
    system = event(
        "g", {"kind": "Pod", "name": "p", "namespace": "kube-system"}, "kube-system", reportingInstance=two_nodes.mine
    )
    denied(await two_nodes.agent("POST", "/api/v1/namespaces/kube-system/events", system), "namespaces of Kubernetes")


async def test_an_agent_that_may_evict_evicts_no_pods_of_the_system(two_nodes: TwoNodes, unique: str) -> None:
    """With ``deploy/options/evict.yaml``; the pods need not be there for the policy to decide."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": unique}}
    for namespace in ("kube-system", two_nodes.namespace):  # the test's stands for tessera-system
        path = f"/api/v1/namespaces/{namespace}/pods/{unique}/eviction"
        denied(
            await two_nodes.agent("POST", path, eviction),
            f"{two_nodes.mine} may not evict pod {namespace}/{unique}: agents evict",
        )
    assert (await two_nodes.agent("POST", f"/api/v1/namespaces/default/pods/{unique}/eviction", eviction)).status == 404


async def test_an_agent_that_may_evict_evicts_pods_of_its_own_node_only(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    core = "/api/v1/namespaces/default/pods"
    for name, node in (("own", two_nodes.mine), ("other", two_nodes.other), ("unbound", "")):
        cleanup(f"{core}/{unique}-{name}?gracePeriodSeconds=0")
        await a_pod(api, "default", f"{unique}-{name}", node)

    async def evict(name: str) -> Answer:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": f"{unique}-{name}"}}
        return await two_nodes.agent("POST", f"{core}/{unique}-{name}/eviction?dryRun=All", eviction)

    for name in ("other", "unbound"):
        async with asyncio.timeout(TIMEOUT):  # a server sees a new pod among the parameters a moment later
            while (answer := await evict(name)).status < 300:
                pass
        denied(answer, f"{two_nodes.mine} may not evict pod default/{unique}-{name}: agents evict pods on their own")
    (await evict("own")).ok()


async def test_an_agent_publishes_devices_of_its_own_node_only(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices"

    def devices(name: str, driver: str = "gpu.tessera.dev", **spec: Any) -> dict[str, Any]:
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
        made = {"driver": driver, "pool": pool, "devices": [{"name": "gpu-0"}], **spec}
        cleanup(f"{path}/{unique}-{name}")
        return {"metadata": {"name": f"{unique}-{name}"}, "spec": made}

    own_only = "agents write those of their own node only"
    for name, spec in (("other", {"nodeName": two_nodes.other}), ("all", {"allNodes": True})):
        denied(await two_nodes.agent("POST", path, devices(name, **spec)), f"{unique}-{name}", own_only)
    foreign = devices("foreign", "gpu.example.com", nodeName=two_nodes.mine)
    denied(await two_nodes.agent("POST", path, foreign), "its driver is gpu.example.com")
    denied(await two_nodes.unbound("POST", path, devices("unbound", nodeName=two_nodes.mine)), own_only)
    (await two_nodes.agent("POST", path, devices("mine", nodeName=two_nodes.mine))).ok()
    (await api("POST", path, devices("of-others", nodeName=two_nodes.other))).ok()
    change = {"metadata": {"labels": {"a": "b"}}}
    denied(await two_nodes.agent("PATCH", f"{path}/{unique}-of-others", change, content=MERGE), own_only)
    denied(await two_nodes.agent("DELETE", f"{path}/{unique}-of-others"), own_only)
    (await two_nodes.agent("PATCH", f"{path}/{unique}-mine", change, content=MERGE)).ok()
    (await two_nodes.agent("DELETE", f"{path}/{unique}-mine")).ok()


async def a_pod(api: Api, namespace: str, name: str, node: str = "") -> str:
    """A pod of the namespace on a node; returns the path of its status."""
    core = f"/api/v1/namespaces/{namespace}"
    containers = [{"name": "a", "image": "e.com/a:1"}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    metadata = {"name": name, "labels": {"team": "a"}}
    (await api("POST", f"{core}/pods", {"metadata": metadata, "spec": spec})).ok()
    return f"{core}/pods/{name}/status"


def told(status: str = "False") -> dict[str, Any]:
    """What an agent applies to a pod's status."""
    time = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition = {"type": "tessera.dev/GpuHealthy", "status": status, "reason": "GpuUnhealthy", "message": "m", **time}
    return {"apiVersion": "v1", "kind": "Pod", "status": {"conditions": [condition]}}


async def test_an_agent_tells_the_pods_of_its_node_and_no_others(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    places = {"mine": two_nodes.mine, "other": two_nodes.other, "none": ""}
    for name in places:
        cleanup(f"/api/v1/namespaces/{two_nodes.namespace}/pods/{unique}-{name}?gracePeriodSeconds=0")
    paths = {name: await a_pod(api, two_nodes.namespace, f"{unique}-{name}", at) for name, at in places.items()}
    query = "?fieldManager=tessera-agent-health&force=true"
    for status in ("False", "True"):
        (await two_nodes.agent("PATCH", paths["mine"] + query, told(status), content=APPLY)).ok()
    found = (await api("GET", paths["mine"].removesuffix("/status"))).ok()["status"]["conditions"]
    assert [each["status"] for each in found if each["type"] == "tessera.dev/GpuHealthy"] == ["True"]
    for name in ("other", "none"):
        answer = await two_nodes.agent("PATCH", paths[name] + query, told(), content=APPLY)
        denied(answer, f"the agent of node {two_nodes.mine} may not write the status of pod", "on their own node")
    denied(await two_nodes.unbound("PATCH", paths["mine"] + query, told(), content=APPLY), "names no node")


async def test_an_agent_tells_no_pods_of_the_system(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"/api/v1/namespaces/kube-public/pods/{unique}?gracePeriodSeconds=0")
    path = await a_pod(api, "kube-public", unique, two_nodes.mine)
    denied(await two_nodes.agent("PATCH", path, told(), content=STRATEGIC), "namespaces of Kubernetes")


POD_ATTACKS: dict[str, dict[str, Any]] = {
    "a phase": {"status": {"phase": "Failed"}},
    "another condition": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "the controller's": {"status": {"conditions": [{"type": "tessera.dev/SliceAvailable", "status": "False"}]}},
    "an address": {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
    "a container": {"status": {"containerStatuses": [{"name": "a", "restartCount": 9, "image": "i", "imageID": "i"}]}},
    "a label": {"metadata": {"labels": {"team": "b"}}},
    "an annotation": {"metadata": {"annotations": {"a": "b"}}},
}


@pytest.mark.parametrize("name", POD_ATTACKS)
async def test_an_agent_changes_nothing_else_of_a_pod(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None], name: str
) -> None:
    cleanup(f"/api/v1/namespaces/{two_nodes.namespace}/pods/{unique}-pod?gracePeriodSeconds=0")
    path = await a_pod(api, two_nodes.namespace, f"{unique}-pod", two_nodes.mine)
    answer = await two_nodes.agent("PATCH", path, POD_ATTACKS[name], content=STRATEGIC)
    denied(answer, "the condition tessera.dev/GpuHealthy of a pod, and nothing else of it")


async def test_an_agent_gives_a_pod_no_finalizer(
    api: Api, two_nodes: TwoNodes, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"/api/v1/namespaces/{two_nodes.namespace}/pods/{unique}-pod?gracePeriodSeconds=0")
    path = await a_pod(api, two_nodes.namespace, f"{unique}-pod", two_nodes.mine)
    await two_nodes.agent("PATCH", path, {"metadata": {"finalizers": ["example.com/stay"]}}, content=STRATEGIC)
    assert "finalizers" not in (await api("GET", path.removesuffix("/status"))).ok()["metadata"]


async def test_a_driver_pod_pauses_what_uses_the_driver_of_its_node(two_nodes: TwoNodes) -> None:
    for value in ("paused-for-driver-upgrade", "true", None):
        patch = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": value}}}
        (await two_nodes.driver("PATCH", two_nodes.node(two_nodes.mine), patch, content=STRATEGIC)).ok()
        denied(
            await two_nodes.driver("PATCH", two_nodes.node(two_nodes.other), patch, content=STRATEGIC),
            "its own Node only",
        )


@pytest.mark.parametrize("name", NODE_ATTACKS)
async def test_a_driver_pod_changes_nothing_else_of_its_node(two_nodes: TwoNodes, name: str) -> None:
    below, patch = NODE_ATTACKS[name]
    denied(await two_nodes.driver("PATCH", two_nodes.node(two_nodes.mine, below), patch, content=STRATEGIC))


@pytest.fixture
async def judged(api: Api, core: str, namespace: str, unique: str, cleanup: Callable[[str], None]) -> Any:
    """Judges pods of the test's namespace by ``pods.yaml``; returns the server's answer to one."""
    for each in yaml.load_all((DEPLOY / "policies" / "pods.yaml").read_text(), yaml.CSafeLoader):
        path = POLICIES if each["kind"] == "ValidatingAdmissionPolicy" else BINDINGS
        each["metadata"]["name"] = unique
        if path == BINDINGS:
            each["spec"]["policyName"] = unique
            selector = each["spec"]["matchResources"]["namespaceSelector"]
            selector["matchLabels"] = {"kubernetes.io/metadata.name": namespace}
        cleanup(f"{path}/{unique}")
        (await api("POST", path, each)).ok()

    async def ask(pod: Any) -> Answer:
        return await api("POST", f"{core}/pods?dryRun=All", pod)

    async with asyncio.timeout(TIMEOUT):
        while (await ask(pod_with(env=[VISIBLE]))).status < 400:
            pass
    return ask


VISIBLE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def pod_with(annotations: Any = None, volumes: Any = None, **container: Any) -> Any:
    body = {"containers": [{"name": "main", "image": "e.com/a:1", **container}], "volumes": volumes or []}
    return {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": body}


def host(path: str, user: int = 0, **mount: Any) -> Any:
    volumes = [{"name": "v", "hostPath": {"path": path}}]
    mounts = [{"name": "v", "mountPath": "/host", **mount}]
    return pod_with(volumes=volumes, volumeMounts=mounts, securityContext={"runAsUser": user})


async def test_pods_that_take_gpus_past_kubernetes_are_refused(judged: Any) -> None:
    for sent, words in (
        (pod_with(env=[VISIBLE]), "container main chooses its GPUs itself"),
        (pod_with(env=[{"name": "A", "value": "b"}, {**VISIBLE, "value": "GPU-8f3c1b7e"}]), "chooses its GPUs itself"),
        (pod_with({"cdi.k8s.io/x": "nvidia.com/gpu=all"}), "annotation cdi.k8s.io/x names devices"),
        (pod_with(securityContext={"privileged": True}), "container main is privileged"),
        (host("/dev//nvidia0", readOnly=True), "volume v mounts /dev//nvidia0"),
        (host("/var/lib/kubelet/device-plugins"), "volume v mounts /var/lib/kubelet/device-plugins"),
        (host("/"), "container main may write to a folder of the node"),
        (pod_with(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "adds a capability that leads"),
        (pod_with(securityContext={"capabilities": {"add": ["\u017fYS_ADMIN"]}}), "adds a capability that leads"),
        (host("/proc/1/root/dev/nvidia0", readOnly=True), "volume v mounts /proc/1/root/dev/nvidia0"),
        (host("dev/nvidia0", readOnly=True), "volume v mounts dev/nvidia0"),
        (host("/run/cdi/a\nb.json"), "variables.hostFolders"),
        (host("/var/lib/kubelet", readOnly=True), "container main may run as root"),
    ):
        denied(await judged(sent), words)


async def test_other_pods_are_admitted(judged: Any) -> None:
    for sent in (
        pod_with(),
        pod_with(env=[{**VISIBLE, "value": "none"}, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]),
        pod_with(resources={"limits": {"nvidia.com/gpu": "1"}}),
        pod_with({"example.com/note": "x"}, securityContext={"privileged": False}),
        host("/", readOnly=True, user=65534),
        host("/etc/cni/net.d"),
        host("/var/lib/kubelet/pods"),
    ):
        (await judged(sent)).ok()


async def test_a_mebibyte_of_environment_is_no_way_past_the_policy(judged: Any) -> None:
    many = [{"name": "A"}] * ((2**20 - 2**10) // 13)  # the shortest entries; what is left is for the rest of the pod
    answer = await judged(pod_with(env=[*many, VISIBLE]))
    assert answer.status in {403, 422}, answer.body["message"][:500]


async def test_a_namespace_is_left_out_by_its_label(api: Api, judged: Any, namespace: str) -> None:
    label = {"metadata": {"labels": {"tessera.dev/device-access": "allowed"}}}
    (await api("PATCH", f"/api/v1/namespaces/{namespace}", label, content=MERGE)).ok()
    async with asyncio.timeout(TIMEOUT):
        while (await judged(pod_with(env=[VISIBLE]))).status >= 400:
            pass
