"""``tessera install --adopt``: takes the nodes over from NVIDIA's operator, device plugin and MIG manager.

Order, and why:

1. Nothing begins while a node is in the middle of a change by NVIDIA's MIG manager or driver upgrade.
2. NVIDIA's MIG manager stops on the nodes, then feature discovery, then the device plugin: by the operator's own node
   labels ``nvidia.com/gpu.deploy.*=false``, which it respects. So no layout changes any more before Tessera sees it.
3. The ClusterPolicy turns the same parts off, for nodes that come later. DaemonSets without an operator get a node
   selector that no node fulfils.
4. Tessera is installed only when their pods are gone: two plugins of one resource displace each other in kubelet.

Pods run on, with the devices they have. MIG instances stay: Tessera finds the layout of the node's label in force, and
instances that no label explains are left alone. The driver, the container toolkit and DCGM stay with the operator.
Each step looks at the cluster, so the same command continues after an interruption. What is stopped is recorded on the
stopped object itself, so that a removal gives it back (:func:`restore_patch`) without a memory of the installation.
"""

from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tessera.api.names import MIG_CONFIG_STATE_LABEL
from tessera.api.nodes.node_cards import keep_off_label
from tessera.cli.base.connection import CommandError
from tessera.cli.install.apply import AppliedObject
from tessera.cli.install.ownership import list_objects
from tessera.cli.install.preflight import CONFLICTS
from tessera.clock import Clock
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import Conflict, NotFound
from tessera.kube.resources import DAEMONSETS, NODES, PODS, Node

#: Annotation of a ClusterPolicy: the former values of ``enabled`` of the parts that Tessera replaces, as JSON.
ADOPTED_ANNOTATION = "tessera.dev/adopted"
#: Key in the node selector of a DaemonSet that is not the operator's: no node has it, so its pods end.
STOPPED_KEY = "tessera.dev/replaced-by-tessera"
#: Parts that Tessera replaces: end of the node's label ``nvidia.com/gpu.deploy.*``, and key of the ClusterPolicy. In
#: the order in which they stop: first what changes cards, last what offers them.
PARTS: Mapping[str, str] = {
    "mig-manager": "migManager",
    "gpu-feature-discovery": "gfd",
    "device-plugin": "devicePlugin",
}
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."

_DECODER = msgspec.json.Decoder(dict[str, bool | None])


def stop_patch(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch of a ClusterPolicy that turns these parts off and records their values; empty if they are off."""
    spec = policy.get("spec") or {}
    before = {key: (spec.get(key) or {}).get("enabled") for key in PARTS.values()}
    on = {key: each for key, each in before.items() if each is not False}
    if not on:
        return {}
    record = read_record(policy) or {}
    noted = msgspec.json.encode(record | {key: each for key, each in on.items() if key not in record}).decode()
    return {
        "metadata": {"annotations": {ADOPTED_ANNOTATION: noted}},
        "spec": {key: {"enabled": False} for key in on},
    }


def restore_patch(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that gives a ClusterPolicy its former values back; empty if nothing was recorded."""
    record = read_record(policy)
    if record is None:
        return {}
    spec = {key: _restored(policy["spec"].get(key) or {}, record[key]) for key in PARTS.values() if key in record}
    return {"metadata": {"annotations": {ADOPTED_ANNOTATION: None}}, "spec": spec}


def _restored(part: Mapping[str, Any], before: bool | None) -> dict[str, bool | None] | None:
    """The patch of one part; ``None`` removes a part that has nothing else."""
    return None if before is None and part.keys() <= {"enabled"} else {"enabled": before}


def read_record(policy: Mapping[str, Any]) -> dict[str, bool | None] | None:
    """The recorded values; ``None`` without a record, or if it cannot be read."""
    text = (policy["metadata"].get("annotations") or {}).get(ADOPTED_ANNOTATION, "")
    try:
        return _DECODER.decode(text) if text else None
    except msgspec.DecodeError:
        return None


#: States of NVIDIA's MIG manager in the middle of a change.
_CHANGING = frozenset({"pending", "rebooting"})
_PAUSED = "paused-for-"
#: Seconds that NVIDIA's pods may take to end, and seconds between two looks at them.
_END_TIMEOUT = 300.0
_PAUSE = 1.0
#: Names that an error lists.
_SHOWN = 5


async def read_policy(client: Client) -> str:
    """The ClusterPolicy that NVIDIA's operator follows, the oldest one, as text; empty without one."""
    found = sorted(await list_objects(client, CLUSTER_POLICIES), key=lambda each: each["metadata"]["creationTimestamp"])
    return msgspec.json.encode(found[0]).decode() if found else ""


async def stop_others(client: Client, clock: Clock, *, dry: bool) -> AsyncIterator[AppliedObject]:
    """Stops NVIDIA's programs that do the agents' work; yields what changes.

    A node stays as it is if a label keeps the agents off it: none comes there. The label of the device plugin would not
    do so any more beside that of feature discovery, which an adoption sets.

    Raises:
        CommandError: a node is in the middle of a change, or pods do not end.
    """
    nodes = (await client.list(NODES)).items
    if busy := sorted(_busy(nodes)):
        raise CommandError(
            f"error: NVIDIA's operator changes {', '.join(busy[:_SHOWN])} now; nothing was changed, wait until it has"
            " finished: kubectl get nodes -L nvidia.com/mig.config.state,nvidia.com/gpu.deploy.device-plugin"
        )
    left_alone = {each.metadata.name for each in nodes if keep_off_label(each.metadata.labels)}
    for part in PARTS:
        for node in nodes:
            if node.metadata.name in left_alone:
                continue
            label = DEPLOY_PREFIX + part
            if node.metadata.labels.get(label, "false") == "false":
                continue
            if not dry:
                with suppress(NotFound, Conflict):
                    patch = {"metadata": {"labels": {label: "false"}}}
                    await client.merge_patch(NODES, node.metadata.name, patch, uid=node.metadata.uid)
            yield AppliedObject(f"label {label}=false of node/{node.metadata.name}", "configured")
    async for each in _stop_owners(client, dry=dry):
        yield each
    if not dry:
        await _wait_for_end(client, clock, left_alone)


def _busy(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        labels = node.metadata.labels
        paused = any(key.startswith(DEPLOY_PREFIX) and value.startswith(_PAUSED) for key, value in labels.items())
        if paused or labels.get(MIG_CONFIG_STATE_LABEL) in _CHANGING:
            yield node.metadata.name


async def _stop_owners(client: Client, *, dry: bool) -> AsyncIterator[AppliedObject]:
    for policy in await list_objects(client, CLUSTER_POLICIES):
        name = policy["metadata"]["name"]
        if patch := stop_patch(policy):
            if not dry:
                version = policy["metadata"]["resourceVersion"]
                await client.merge_patch(CLUSTER_POLICIES, name, patch, resource_version=version)
            yield AppliedObject(f"clusterpolicy.nvidia.com/{name}", "configured")
    for item in (await client.list(DAEMONSETS.as_dicts())).items:
        metadata, pod = item["metadata"], item["spec"]["template"]["spec"]
        owned = any(each.get("kind") == CLUSTER_POLICIES.kind for each in metadata.get("ownerReferences") or ())
        if owned or not _is_other(pod) or STOPPED_KEY in (pod.get("nodeSelector") or {}):
            continue
        if any(key.startswith(DEPLOY_PREFIX) for key in pod.get("nodeSelector") or {}):
            continue  # the operator's: the labels of the nodes stop it
        if not dry:
            patch = {"spec": {"template": {"spec": {"nodeSelector": {STOPPED_KEY: "true"}}}}}
            await client.merge_patch(DAEMONSETS, metadata["name"], patch, metadata["namespace"])
        yield AppliedObject(f"daemonset.apps/{metadata['name']} in {metadata['namespace']}", "configured")


def _is_other(pod: dict[str, Any]) -> bool:
    """True for a pod of NVIDIA's programs that do the agents' work."""
    return any(part in str(each.get("image", "")) for each in pod.get("containers") or () for part in CONFLICTS)


async def _wait_for_end(client: Client, clock: Clock, left_alone: Container[str]) -> None:
    deadline = clock.monotonic() + _END_TIMEOUT
    while True:
        pods = (await client.list(PODS.as_dicts())).items
        left = [
            f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in pods
            if _is_other(each["spec"])
            and each["spec"].get("nodeName") not in left_alone
            and (each.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        ]
        if not left:
            return
        if clock.monotonic() >= deadline:
            raise CommandError(
                f"error: pods of NVIDIA's programs have not ended: {', '.join(sorted(left)[:_SHOWN])}; Tessera is not"
                " installed yet; look at them, then run the command again"
            )
        await clock.sleep(_PAUSE)
