"""``tessera why`` of pods with ResourceClaims and of claims: objects of a cluster in, one answer out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.explain.test_every_answer import cases_of
from tests.explain.test_pods import NOW, agents_of, cards, event, lease, node, said
from tests.support.claim_cluster import ClaimCluster, request

from tessera.api.instaslice import Instaslice
from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL
from tessera.clock import rfc3339
from tessera.dra.claims import DeviceClass, ResourceClaim
from tessera.dra.resource_slices import ResourceSlice
from tessera.explain import claims, pod_claims
from tessera.explain.claim_objects import ClaimObjects
from tessera.explain.claims import explain_claim
from tessera.explain.explanation import Explanation
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.kube.resources import Pod, ResourceQuota
from tessera.reasons.reason import Full

ONE, THREE = "mig-1g.5gb.tessera.dev", "mig-3g.20gb.tessera.dev"
LABELS = {"nvidia.com/mig.config": "dynamic", DEVICE_API_LABEL: DEVICE_API_DRA}
DEVICE = "gpu-0-mig-3g20gb-9-{}"


def published() -> ClaimCluster:
    """What an A100 of node n1 publishes, as its agent writes it."""
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    return cluster


class Grant(NamedTuple):
    """An allocation: a device's name, and the pods that have reserved it."""

    device: str
    users: Sequence[str] = ()


def claim(name: str = "c", of: str = THREE, grant: Grant | None = None, **meta: Any) -> ResourceClaim:
    status: dict[str, Any] = {}
    if grant is not None:
        result = {"request": "x", "driver": "gpu.tessera.dev", "pool": "n1", "device": grant.device}
        field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
        status = {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in grant.users],
        }
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}", **meta},
        "spec": {"devices": {"requests": [request("x", of)]}},
        "status": status,
    }
    return msgspec.convert(body, ResourceClaim)


def user(
    name: str,
    *used: str,
    at: float = 60,
    template: str = "",
    group: str = "",
    node: str = "",
    host: str = "",
    **status: Any,
) -> Pod:
    entries = [{"name": each, "resourceClaimName": each} for each in used]
    entries += [{"name": group, "podGroupResourceClaim": group}] if group else []
    entries += [{"name": "slice", "resourceClaimTemplateName": template}] if template else []
    hosts = {"kubernetes.io/hostname": host} if host else {}
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": rfc3339(NOW - at)},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": entries, "nodeName": node, "nodeSelector": hosts},
        "status": {"phase": "Pending", **status},
    }
    return msgspec.convert(body, Pod)


def view(
    *objects: Pod | ResourceClaim | DeviceClass,
    records: Instaslice | None = None,
    forbidden: Sequence[str] = (),
    **seen: Any,
) -> ClusterView:
    cluster = published()
    known = ClaimObjects(
        claims=[each for each in objects if isinstance(each, ResourceClaim)],
        classes=[
            *(msgspec.convert(each, DeviceClass) for each in cluster.classes),
            *(each for each in objects if isinstance(each, DeviceClass)),
        ],
        slices=[_of_card(each) for each in cluster.slices.values()],
        forbidden=frozenset(forbidden),
    )
    nodes = [node(labels=LABELS)]
    pods = [*(each for each in objects if isinstance(each, Pod)), *agents_of(nodes)]
    given = {"instaslices": [records or cards()], "leases": [lease()], "claims": known, **seen}
    return ClusterView(Snapshot(now=NOW, pods=pods, nodes=nodes, **given))


def _of_card(item: Any) -> ResourceSlice:
    text = msgspec.json.encode(item).replace(b"GPU-n1-0", b"GPU-0")
    return msgspec.json.decode(text, type=ResourceSlice)


def why(*objects: Pod | ResourceClaim | DeviceClass, **seen: Any) -> Explanation:
    """About the first object."""
    first, found = objects[0], view(*objects, **seen)
    if isinstance(first, Pod):
        return explain_pod(found, first)
    assert isinstance(first, ResourceClaim)
    return explain_claim(found, first)


HELD = cards(("a", "3g.20gb", 4, 4, "created"))
FULL = cards(("x", "3g.20gb", 0, 4, "created"), ("y", "3g.20gb", 4, 4, "created"))
GRANTED = Grant(DEVICE.format(4), ["a"])
OTHERS = [user("x", node="n1", phase="Running"), user("y", node="n1", phase="Running")]


class Row(NamedTuple):
    """What is asked about, the world, and the answer."""

    objects: Sequence[Any]
    case: str
    words: Sequence[str]
    seen: Mapping[str, Any] = MappingProxyType({})


NIC = msgspec.convert(
    {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic'"}}]}},
    DeviceClass,
)
QUOTA = {"mig-3g.20gb.tessera.dev.deviceclass.resource.k8s.io/devices": "2"}
QUOTAS = [
    msgspec.convert(
        {"metadata": {"name": "gpus", "namespace": "team"}, "status": {"hard": QUOTA, "used": QUOTA}}, ResourceQuota
    )
]
REFUSED = event(
    "a",
    "FailedResourceClaimCreation",
    'PodResourceClaim slice: failed to create ResourceClaim: resourceclaims "a-slice-x" is forbidden: exceeded quota:'
    f" gpus, requested: {next(iter(QUOTA))}=1, used: {next(iter(QUOTA))}=2, limited: {next(iter(QUOTA))}=2",
)
ROWS = {
    "room": Row([user("a", "c"), claim()], "placing", ["there is room", "3g.20gb on GPU 0"]),
    "no room": Row(
        [user("a", "c"), claim(), *OTHERS], "full", ["it requests 3g.20gb", "8 of its 8"], {"records": FULL}
    ),
    "room for a smaller one": Row(
        [user("a", "c"), claim(), *OTHERS[:1]],
        "fragmented",
        ["a smaller slice has room now: 2g.10gb, 1g.10gb"],
        {"records": cards(("x", "2g.10gb", 2, 2, "created"), ("y", "2g.10gb", 4, 2, "created"))},
    ),
    "no controller": Row([user("a", "c"), claim()], "no-controller", ["there is no Lease"], {"leases": []}),
    "promised": Row(
        [user("a", "c"), claim(grant=Grant(DEVICE.format(4)))],
        "unscheduled",
        ["has its slice and waits for kube-scheduler to bind it", "where its ResourceClaims are allocated"],
        {"records": HELD},
    ),
    "runs": Row(
        [user("a", "c", node="n1", phase="Running"), claim(grant=GRANTED)],
        "runs",
        ["it has 3g.20gb on GPU 0, memory slots 4-7"],
        {"records": HELD},
    ),
    "unmade": Row([user("a", template="big")], "claim-not-made", ["slice is still to be made", "Template big"]),
    "unmade of a group": Row(
        [user("a", group="slice")],
        "claim-not-made",
        ["slice is still to be made from its PodGroup", "kubectl get podgroups.scheduling.k8s.io -n team"],
    ),
    "quota": Row(
        [user("a", template="big")],
        "claim-quota",
        ["a quota refuses it", "quota gpus: 2 of 2 of mig-3g.20gb.tessera.dev.deviceclass"],
        {"events": [REFUSED], "quotas": QUOTAS},
    ),
    "no claim": Row([user("a", "c")], "no-claim", ["ResourceClaim team/c, which does not exist"]),
    "not first": Row(
        [user("b", "c", at=10), user("a", "c"), claim(), *OTHERS],
        "shared-claim",
        ["waits; another pod asks for its ResourceClaim first", "pod a asks first for 1 x 3g.20gb of claim"],
        {"records": FULL},
    ),
    "shares": Row(
        [user("b", "c", at=10, node="n1", phase="Running"), user("a", "c"), claim(grant=GRANTED)],
        "runs",
        ["it shares claim c with pod a"],
        {"records": HELD},
    ),
    "by others": Row([user("a", "c"), claim(grant=GRANTED)], "foreign-allocation", ["not by Tessera", "delete claim"]),
    "of others": Row([user("a", "c"), claim(of="nic"), NIC], "claims", ["which Tessera does not serve", "set a limit"]),
    "starts": Row(
        [user("b", "c", at=10, node="n1"), user("a", "c"), claim(grant=GRANTED)],
        "starting",
        ["is starting on node n1", "it shares claim c with pod a"],
        {"records": HELD},
    ),
    "shares, not bound": Row(
        [user("b", "c", at=10), user("a", "c"), claim(grant=GRANTED)],
        "unscheduled",
        ["waits for kube-scheduler to bind it to the node of its claims"],
        {"records": HELD},
    ),
    "on another host": Row(
        [user("b", "c", at=10, host="n2"), user("a", "c"), claim(grant=GRANTED)],
        "claim-elsewhere",
        ["its claim c is allocated on node n1, and its node selector names n2"],
        {"records": HELD},
    ),
    "refused": Row([user("a", "c"), claim(of="gpu.tessera.dev")], "claim-refused", ["request x: no node publishes"]),
    "no class": Row([user("a", "c"), claim(of="mig-9g.99gb")], "claims", ["there is no DeviceClass mig-9g.99gb"]),
    "hidden": Row(
        [user("a", "c"), claim()],
        "claims",
        ["you may not list deviceclasses", "--clusterrole=tessera-cluster-view"],
        {"forbidden": ["deviceclasses"]},
    ),
    "claim: waits with its pod": Row(
        [claim(), user("a", "c"), *OTHERS], "full", ["waits with pod a, which", "1 x 3g.20gb"], {"records": FULL}
    ),
    "claim: pending and hidden": Row(
        [claim()], "claim-pending", ["is not allocated"], {"forbidden": ["deviceclasses"]}
    ),
    "claim: of others": Row([claim(of="nic"), NIC], "claim-of-others", ["devices of another driver"]),
    "claim: refused": Row(
        [claim(of="gpu.tessera.dev")],
        "claim-refused",
        ["claim team/c: request x: no node publishes", "its DeviceClass is gpu.tessera.dev"],
    ),
    "claim: unused": Row([claim()], "claim-unused", ["create a pod with the claim"]),
    "claim: in use": Row(
        [claim(grant=GRANTED), user("a", "c", node="n1", phase="Running")],
        "claim-used",
        ["allocated by Tessera: 3g.20gb on GPU 0, memory slots 4-7, on node n1", "reserved for 1 user: a"],
        {"records": HELD},
    ),
    "claim: not reserved": Row(
        [claim(grant=Grant(DEVICE.format(4))), user("a", "c")],
        "claim-unreserved",
        ["kube-scheduler reserves it when it binds pod a", "tessera why a -n team"],
        {"records": HELD},
    ),
    "claim: by others": Row(
        [claim(grant=GRANTED), user("a", "c", node="n1")],
        "foreign-allocation",
        ["no promise is on record", "kubectl delete resourceclaim -n team c"],
    ),
    "claim: deleted": Row(
        [claim(grant=GRANTED, deletionTimestamp=rfc3339(NOW), finalizers=["resource.kubernetes.io/delete-protection"])],
        "claim-deleted",
        ["kept by finalizer resource.kubernetes.io/delete-protection", "kubectl delete pod -n team a"],
    ),
    "claim: no class": Row([claim(of="none")], "no-class", ["there is no DeviceClass none"]),
    "claim: hidden": Row(
        [claim(grant=GRANTED)],
        "claim-allocated",
        ["is allocated on node n1", "you may not list resourceslices"],
        {"forbidden": ["resourceslices"]},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_first_thing_in_the_way(name: str) -> None:
    row = ROWS[name]
    found = why(*row.objects, **row.seen)
    assert found.case == row.case, said(found)
    for words in row.words:
        assert words in said(found)


def test_no_branch_is_left_out() -> None:
    written = cases_of(Path(module.__file__) for module in (claims, pod_claims) if module.__file__)
    assert written == {row.case for row in ROWS.values()} & written


ROW = QueuedPod(
    namespace="team",
    name="a",
    uid="uid-a",
    profiles=("3g.20gb",),
    position=2,
    of=3,
    reason="full",
    why=Full(profiles=("3g.20gb",)),
)


@pytest.mark.parametrize("forbidden", [(), ("deviceclasses",)], ids=["all rights", "no devices"])
def test_the_controllers_page_is_believed_with_its_position(forbidden: Sequence[str]) -> None:
    page = QueuePage(leads=True, pods=(ROW,))
    found = why(user("a", "c"), claim(), forbidden=forbidden, page=page)
    assert found.case == "full"
    assert "it requests 3g.20gb" in found.facts
    assert any("position 2 of 3" in each for each in found.facts), found.facts
