"""Who may write devices and their use: kubelets, plugins with the token of a node, and tenants.

Seen on Kubernetes 1.36.2, except where a test names its source.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, TIMEOUT, Answer, Api
from tests.support.device_claims import API, allocation, claim, claim_template, exactly, resource_slice
from tests.support.pod_claims import Claims

from tessera.kube.http import HttpTransport
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.cluster.remote_nodes import ImpersonatingTransport

Obj = dict[str, Any]

ROLES = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SLICES = f"{API}/resourceslices"


async def eventually(send: Callable[[], Awaitable[Answer]], status: int) -> Answer:
    """The first answer with a status; a server needs a moment to heed a new role, policy or slice."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = await send()
            if answer.status == status:
                return answer
            await asyncio.sleep(0.05)


class Rights:
    """Users with rights over the devices of one driver; what they create is deleted after the test."""

    def __init__(self, api: Api, claims: Claims, word: str, cleanup: Callable[[str], None]) -> None:
        self.api = api
        self.namespace = claims.pods.split("/")[-2]
        self.claims = claims.claims
        self.word = word
        self.driver = f"{word}.example.com"
        self.cleanup = cleanup

    def slice_of(self, node: str) -> Obj:
        """The body of a node's slice, named after the node."""
        self.cleanup(f"{SLICES}/{node}")
        return resource_slice(node, self.driver, node, {"name": "gpu-0"})

    async def publish(self, *nodes: str) -> None:
        """Creates the slices of nodes as an administrator."""
        for node in nodes:
            (await self.api("POST", SLICES, self.slice_of(node))).ok()

    async def store(self, path: str, name: str, **body: Any) -> None:
        """Creates an object."""
        self.cleanup(f"{path}/{name}")
        (await self.api("POST", path, {"metadata": {"name": name}, **body})).ok()

    async def grant(self, *rules: Obj) -> None:
        """Gives the namespace's service account ``default`` rights in the whole cluster."""
        await self.store(f"{ROLES}/clusterroles", self.word, rules=list(rules))
        await self.bind(f"{ROLES}/clusterrolebindings", self.word, "ClusterRole")

    async def bind(self, path: str, name: str, kind: str) -> None:
        """Binds a role to that account."""
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}
        await self.store(path, name, roleRef=reference, subjects=[subject])

    async def token(self, node: str = "") -> str:
        """A token of that account, bound to a pod on a node if one is named."""
        core = f"/api/v1/namespaces/{self.namespace}"
        spec: Obj = {"expirationSeconds": 600}
        if node:
            container = {"name": "plugin", "image": "registry.k8s.io/pause:3.10"}
            pod = {"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [container]}}
            uid = (await self.api("POST", f"{core}/pods", pod)).ok()["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": node, "uid": uid}
        answer = await self.api("POST", f"{core}/serviceaccounts/default/token", {"spec": spec})
        return str(answer.ok()["status"]["token"])


@pytest.fixture
def rights(api: Api, claims: Claims, unique: str, cleanup: Callable[[str], None]) -> Rights:
    return Rights(api, claims, unique, cleanup)


@pytest.fixture
def kubelet(transport: HttpTransport) -> Callable[[str], Api]:
    """Makes raw requests as the kubelet of a node."""

    def made(node: str) -> Api:
        user = UserInfo(name=f"system:node:{node}", groups=("system:nodes",))
        return Api(ImpersonatingTransport(transport, user))  # type: ignore[arg-type]

    return made


@pytest.fixture
def names(unique: str) -> tuple[str, str]:
    """Names of two nodes."""
    return f"{unique}-a", f"{unique}-b"


# -- kubelets -------------------------------------------------------------------------------------------------------


async def test_a_kubelet_creates_slices_of_its_own_node_only(
    kubelet: Callable[[str], Api], rights: Rights, names: tuple[str, str]
) -> None:
    mine, other = names
    (await kubelet(mine)("POST", SLICES, rights.slice_of(mine))).ok()
    forged = rights.slice_of(other)
    for body in (forged, {**forged, "spec": {**forged["spec"], "nodeName": None, "allNodes": True}}):
        text = (await kubelet(mine)("POST", SLICES, body)).refused(403, "Forbidden")
        assert "can only create ResourceSlice with the same NodeName as the requesting node" in text


@pytest.mark.parametrize(
    ("verb", "method", "body"),
    [
        ("get", "GET", None),
        ("patch", "PATCH", {"spec": {"devices": [{"name": "forged"}]}}),
        ("update", "PUT", {}),
        ("delete", "DELETE", None),
    ],
)
async def test_a_kubelet_reaches_no_slice_of_another_node(  # noqa: PLR0917 - fixtures and a table
    kubelet: Callable[[str], Api], rights: Rights, names: tuple[str, str], verb: str, method: str, body: Obj | None
) -> None:
    owner, thief = names
    await rights.publish(owner)
    form = {"content": MERGE} if method == "PATCH" else {}
    text = (await kubelet(thief)(method, f"{SLICES}/{owner}", body, **form)).refused(403, "Forbidden")
    assert text == (
        f'resourceslices.resource.k8s.io "{owner}" is forbidden: User "system:node:{thief}" cannot {verb} resource '
        '"resourceslices" in API group "resource.k8s.io" at the cluster scope: no relationship found between node '
        f"'{thief}' and this object"
    )
    await eventually(lambda: kubelet(owner)("GET", f"{SLICES}/{owner}"), 200)


async def test_a_kubelet_lists_and_wipes_the_slices_of_its_node_only(
    kubelet: Callable[[str], Api], rights: Rights, names: tuple[str, str]
) -> None:
    await rights.publish(*names)
    mine, other = (f"{SLICES}?fieldSelector=spec.nodeName={node}" for node in names)
    for query in (SLICES, other):
        for method, verb in (("GET", "list"), ("DELETE", "deletecollection")):
            text = (await kubelet(names[0])(method, query)).refused(403, "Forbidden")
            assert f"cannot {verb} resource" in text
            assert "can only list/watch/deletecollection resourceslices with nodeName field selector" in text
    found = (await kubelet(names[0])("GET", mine)).ok()["items"]
    assert [each["metadata"]["name"] for each in found] == [names[0]]
    (await kubelet(names[0])("DELETE", mine)).ok()
    await rights.api.gone(f"{SLICES}/{names[0]}")
    assert (await rights.api("GET", f"{SLICES}/{names[1]}")).status == 200


# -- plugins --------------------------------------------------------------------------------------------------------


async def test_a_plugin_writes_the_status_of_devices_of_the_node_of_its_token(
    rights: Rights, as_token: Callable[[str], Api], make_node: Any
) -> None:
    nodes = [await make_node(), await make_node()]
    status = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]}
    own = {**status, "resources": ["resourceclaims/driver"], "verbs": ["associated-node:patch"]}
    await rights.grant(status, {**own, "resourceNames": [rights.driver]})
    path = f"{rights.claims}/a/status"
    (await rights.api("POST", rights.claims, claim("a", exactly("gpu", "gpus")))).ok()
    given = {"status": {"allocation": allocation(rights.driver, nodes[0], "gpu-0")}}
    (await rights.api("PATCH", path, given, content=MERGE)).ok()
    devices = {"status": {"devices": [{"driver": rights.driver, "pool": nodes[0], "device": "gpu-0"}]}}
    plugins = [as_token(await rights.token(node)) for node in nodes]
    await eventually(lambda: plugins[0]("PATCH", path, devices, content=MERGE), 200)
    (await rights.api("PATCH", path, {"status": {"devices": None}}, content=MERGE)).ok()
    assert (
        'status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        'verb="[arbitrary-node:patch]" permission: '
    ) in (await plugins[1]("PATCH", path, devices, content=MERGE)).refused(422, "Invalid")


#: Compares the node of the token with that of the slice.
OWN_NODE: Obj = {
    "matchConstraints": {
        "resourceRules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["resourceslices"],
            }
        ]
    },
    "variables": [
        {
            "name": "node",
            "expression": "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')",
        },
        {
            "name": "written",
            "expression": "(request.operation == 'DELETE' ? oldObject : object).spec.?nodeName.orValue('')",
        },
    ],
    "validations": [
        {
            "expression": "variables.node != '' && variables.node == variables.written",
            "messageExpression": "'this plugin runs on ' + variables.node + ', not on ' + variables.written",
        }
    ],
}


async def test_a_policy_can_bind_a_plugin_to_slices_of_the_node_of_its_token(
    rights: Rights, as_token: Callable[[str], Api], make_node: Any
) -> None:
    """RBAC knows no nodes."""
    nodes = [await make_node(), await make_node()]
    verbs = ["create", "update", "patch", "delete"]
    await rights.grant({"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": verbs})
    account = f"request.userInfo.username == 'system:serviceaccount:{rights.namespace}:default'"
    spec = {**OWN_NODE, "matchConditions": [{"name": "plugin", "expression": account}]}
    await rights.store(f"{ADMISSION}/validatingadmissionpolicies", rights.word, spec=spec)
    bound = {"policyName": rights.word, "validationActions": ["Deny"]}
    await rights.store(f"{ADMISSION}/validatingadmissionpolicybindings", rights.word, spec=bound)
    plugin = as_token(await rights.token(nodes[0]))
    own, forged = (rights.slice_of(node) for node in nodes)
    # A dry run, since the policy may not be in force yet.
    answer = await eventually(lambda: plugin("POST", f"{SLICES}?dryRun=All", forged), 422)
    assert f"this plugin runs on {nodes[0]}, not on {nodes[1]}" in answer.refused(422, "Invalid")
    (await plugin("POST", SLICES, own)).ok()
    (await rights.api("POST", SLICES, forged)).ok()
    (await plugin("DELETE", f"{SLICES}/{nodes[1]}")).refused(422, "Invalid")
    (await plugin("DELETE", f"{SLICES}/{nodes[0]}")).ok()


# -- tenants --------------------------------------------------------------------------------------------------------


async def test_a_tenant_uses_claims_but_allocates_none(rights: Rights, as_token: Callable[[str], Api]) -> None:
    """With the role ``admin`` of its namespace, and one of its own: a Role gives no ``binding`` in the cluster."""
    place = f"{ROLES}/namespaces/{rights.namespace}"
    kinds = ["resourceclaims", "resourceclaims/status", "resourceclaims/binding", "resourceclaimtemplates"]
    rule = {"apiGroups": ["resource.k8s.io"], "resources": kinds, "verbs": ["*"]}
    await rights.store(f"{place}/roles", "all", rules=[rule])
    await rights.bind(f"{place}/rolebindings", "all", "Role")
    await rights.bind(f"{place}/rolebindings", "admin", "ClusterRole")
    tenant = as_token(await rights.token())
    templates = f"{API}/namespaces/{rights.namespace}/resourceclaimtemplates"
    await eventually(lambda: tenant("POST", templates, claim_template("a", exactly("gpu", "gpus"))), 201)
    given = {"allocation": allocation(rights.driver, "n1", "gpu-0")}
    forged = {**claim("a", exactly("gpu", "gpus")), "status": given}
    assert not (await tenant("POST", rights.claims, forged)).ok().get("status")
    for consumer in ({}, {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}):
        written = {"status": {**given, **consumer}}
        refused = await tenant("PATCH", f"{rights.claims}/a/status", written, content=MERGE)
        text = refused.refused(422, "Invalid")
        assert "changing status.allocation or status.reservedFor requires" in text
        assert "at the cluster scope" in text
    (await tenant("POST", SLICES, rights.slice_of(rights.word))).refused(403, "Forbidden")
