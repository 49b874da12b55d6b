"""One write of an object at a time, the next when the last was seen, and none that must fail."""

import asyncio
import random
from typing import Any

import pytest

from tessera.api.nodes.node_marks import (
    DRIVER_ANNOTATION,
    DRIVER_CONDITION,
    DRIVER_SET_LABEL,
    DriverPhase,
    DriverStatus,
    DriverStrategy,
)
from tessera.clock import LoopClock
from tessera.driver.driver_sets import NAMESPACE, PoolKey, make_set
from tessera.driver.executor import SEEN_SECONDS, DriverExecutor
from tessera.driver.planning.interface import CreateSet, Instruction, LabelNode, WriteCondition, WriteStatus
from tessera.gpu_operator.driver_policy import DriverPolicy, OperandSettings
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Request, Response
from tessera.kube.resources import CONFIGMAPS, CRDS, DAEMONSETS, NAMESPACES, NODES, OPENSHIFT_PROXIES, Node
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
#: Seconds that an answer takes to come.
FAR = 0.1


class Distant(InProcessTransport):
    """An API server that is far away."""

    async def request(self, request: Request) -> Response:
        answer = await super().request(request)
        await asyncio.sleep(FAR)
        return answer


class Desk:
    """A node, and the hands that write it."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000)
        self.server = ApiServer(self.clock)
        self.client = Client(Distant(self.server, ADMIN), field_manager="t", clock=self.clock)
        self.woken = 0
        self.acting = DriverExecutor(
            KubeRuntime(client=self.client, clock=self.clock, rng=random.Random(0)),
            wake=self._wake,
            image=lambda: "tessera:1",
            toolkit_spec=lambda: "",
        )

    def _wake(self) -> None:
        self.woken += 1

    async def node(self) -> Node:
        return await self.client.get(NODES, "a")

    async def do(self, *instructions: Instruction) -> None:
        """Begins what may be begun, and waits for the answers."""
        async with asyncio.TaskGroup() as group:
            for each in instructions:
                self.acting.start(each, group)

    @property
    def writes(self) -> int:
        return len(self.server.audit.writes(resource="nodes")) - 1  # its creation

    def tell(self, node: Node, phase: DriverPhase) -> WriteStatus:
        status = DriverStatus(strategy=DriverStrategy.PRECOMPILED, phase=phase, since="2027-01-15T08:00:00Z")
        return WriteStatus(node="a", uid=node.metadata.uid, status=status)

    def show(self, node: Node) -> WriteCondition:
        condition = {"type": DRIVER_CONDITION, "status": "False", "reason": "Waiting", "message": "it waits"}
        return WriteCondition(node="a", uid=node.metadata.uid, condition=condition)

    def label(self, node: Node, driver_set: str = "one") -> LabelNode:
        return LabelNode(node="a", uid=node.metadata.uid, version=node.metadata.resource_version, set=driver_set)


PROXY = {
    "metadata": {"name": "cluster"},
    "spec": {
        "httpProxy": "http://proxy:3128",
        "httpsProxy": "http://proxy:3129",
        "noProxy": "example.com",
        "trustedCA": {"name": "user-ca-bundle"},
    },
    "status": {"noProxy": ".cluster.local,172.30.0.0/16,example.com"},
}
VARIABLES = {
    "HTTP_PROXY": "http://proxy:3128",
    "HTTPS_PROXY": "http://proxy:3129",
    "NO_PROXY": ".cluster.local,172.30.0.0/16,example.com",
}
RHCOS = PoolKey(
    os_id="rhcos", os_version="4.15", kernel="5.14.0-284.54.1.el9_2.x86_64", architecture="amd64", ostree="415.92.2"
)


async def made_set(desk: Desk, pool: PoolKey, proxy: dict[str, Any] | None) -> dict[str, Any]:
    """The pod of a driver set's DaemonSet in a cluster with, or without, OpenShift's proxy."""
    if proxy is not None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": "proxies", "singular": "proxy", "kind": "Proxy", "listKind": "ProxyList"}
        spec = {"group": "config.openshift.io", "scope": "Cluster", "names": names, "versions": [version]}
        await desk.client.create(CRDS.as_dicts(), {"metadata": {"name": "proxies.config.openshift.io"}, "spec": spec})
        await desk.client.create(OPENSHIFT_PROXIES, proxy)
    await desk.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
    policy = DriverPolicy(kind="ClusterPolicy", name="p", manager=OperandSettings(enabled=False))
    driver_set = make_set(policy, pool, DriverStrategy.BUILT, "nvcr.io/nvidia/driver@sha256:" + "a" * 64)
    await desk.do(CreateSet(set=driver_set, policy=policy))
    assert desk.acting.problems == {}
    found = await desk.client.get(DAEMONSETS.as_dicts(), driver_set.name, NAMESPACE)
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def proxied(pod: dict[str, Any]) -> dict[str, str]:
    """Variables of the driver container that name a proxy."""
    (driver,) = (each for each in pod["containers"] if each["name"] == "nvidia-driver-ctr")
    return {each["name"]: each["value"] for each in driver["env"] if each["name"].upper().endswith("_PROXY")}


async def test_openshifts_proxy_and_its_certificates_reach_the_driver_container(desk: Desk) -> None:
    pod = await made_set(desk, RHCOS, PROXY)
    assert proxied(pod) == VARIABLES | {name.lower(): text for name, text in VARIABLES.items()}
    (volume,) = (each for each in pod["volumes"] if each["name"] == "gpu-operator-trusted-ca")
    assert volume["configMap"]["items"] == [{"key": "ca-bundle.crt", "path": "tls-ca-bundle.pem"}]
    mounts = [(c["name"], m) for c in pod["containers"] for m in c["volumeMounts"] if m["name"] == volume["name"]]
    assert [(name, each["mountPath"], each["readOnly"]) for name, each in mounts] == [
        ("nvidia-driver-ctr", "/etc/pki/ca-trust/extracted/pem", True)
    ]
    bundle = await desk.client.get(CONFIGMAPS, "gpu-operator-trusted-ca", NAMESPACE)
    assert bundle.metadata.labels["config.openshift.io/inject-trusted-cabundle"] == "true"


@pytest.mark.parametrize(
    ("pool", "proxy"),
    [
        (RHCOS, None),
        (RHCOS, {"metadata": {"name": "cluster"}, "spec": {"trustedCA": {"name": ""}}}),
        (RHCOS, {"metadata": {"name": "cluster"}, "spec": {"httpProxy": 5, "trustedCA": []}, "status": "x"}),
        (PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64"), PROXY),
    ],
)
async def test_without_a_proxy_of_openshift_there_is_nothing_of_it(
    desk: Desk, pool: PoolKey, proxy: dict[str, Any] | None
) -> None:
    pod = await made_set(desk, pool, proxy)
    assert proxied(pod) == {}
    assert "gpu-operator-trusted-ca" not in {each["name"] for each in pod["volumes"]}
    with pytest.raises(NotFound):
        await desk.client.get(CONFIGMAPS, "gpu-operator-trusted-ca", NAMESPACE)


@pytest.fixture
async def desk(virtual_time: None) -> Desk:
    desk = Desk()
    await desk.client.create(NODES.as_dicts(), {"metadata": {"name": "a"}})
    return desk


async def test_what_was_told_is_not_told_again_before_it_is_seen(desk: Desk) -> None:
    node = await desk.node()
    await desk.do(desk.tell(node, DriverPhase.PULLING))
    await desk.do(desk.tell(node, DriverPhase.PULLING))
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert desk.writes == 1
    desk.acting.observe_change("condition/a")  # of another write
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert desk.writes == 1
    desk.acting.observe_change("status/a")
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert desk.writes == 2
    assert '"starting"' in (await desk.node()).metadata.annotations[DRIVER_ANNOTATION]


async def test_what_is_never_seen_changed_nothing_and_is_not_waited_for_for_long(desk: Desk) -> None:
    node = await desk.node()
    await desk.do(desk.tell(node, DriverPhase.PULLING))
    await desk.clock.sleep(SEEN_SECONDS / 2)
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert (desk.writes, desk.woken) == (1, 1)
    await desk.clock.sleep(SEEN_SECONDS / 2)
    assert desk.woken == 2
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert desk.writes == 2


async def test_a_write_that_is_seen_before_its_answer_comes_is_not_waited_for(desk: Desk) -> None:
    node = await desk.node()
    async with asyncio.TaskGroup() as group:
        desk.acting.start(desk.tell(node, DriverPhase.PULLING), group)
        await desk.clock.sleep(FAR / 2)
        desk.acting.observe_change("status/a")
    await desk.do(desk.tell(node, DriverPhase.STARTING))
    assert desk.writes == 2


async def test_a_label_waits_until_what_was_told_is_seen_since_it_holds_for_the_node_as_it_was_seen_only(
    desk: Desk,
) -> None:
    node = await desk.node()
    await desk.do(desk.tell(node, DriverPhase.PULLING), desk.show(node), desk.label(node))
    assert desk.writes == 2
    desk.acting.observe_change("status/a", "condition/a")
    await desk.do(desk.label(await desk.node()))
    assert desk.writes == 3
    assert desk.server.audit.codes[409] == 0


async def test_nothing_is_told_of_a_node_while_its_label_is_written(desk: Desk) -> None:
    node = await desk.node()
    await desk.do(desk.label(node), desk.tell(node, DriverPhase.PULLING), desk.show(node))
    assert desk.writes == 1
    assert (await desk.node()).metadata.labels[DRIVER_SET_LABEL] == "one"
    await desk.do(desk.tell(node, DriverPhase.PULLING), desk.show(node))
    assert desk.writes == 3
    assert desk.server.audit.codes[409] == 0


async def test_writes_of_nodes_that_hang_leave_connections_to_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging: list[str] = []

    async def hang(*arguments: Any, **_options: Any) -> None:
        hanging.append(arguments[1])
        await asyncio.Event().wait()

    monkeypatch.setattr(desk.client, "merge_patch", hang)
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            desk.acting.start(WriteStatus(node=f"n{number}", uid=f"uid-{number}", status=None), group)
        await asyncio.sleep(0.1)
        assert len(hanging) == 32
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
