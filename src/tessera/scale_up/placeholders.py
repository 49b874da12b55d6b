"""Placeholder pods: what an autoscaler sees in place of pods behind a gate. Pure.

A placeholder stands for one new node of a group. No node that was there when it was made takes it, so the scheduler
reports it as unschedulable and autoscalers count it. It never runs: it mounts a ConfigMap that does not exist, and the
controller deletes it as soon as it is bound.

There are three forms, since autoscalers differ in what they take a new node for:

- **For its cards** (``nvidia.com/gpu``, all of a node): Karpenter, and Cluster Autoscaler for a group without a node,
  take the shape from the cloud, where a machine has whole cards. Nodes whose cards are cut on demand offer none.
- **For a node of its own**: Cluster Autoscaler copies a Ready node of the group if there is one, and that node offers
  no whole cards. Then the placeholder asks for none, excludes the present nodes by their hostnames and repels other
  placeholders. Karpenter leaves out pods that select by hostname, so it never gets this form.

- **For whole cards of a new node**, where a group's nodes have whole cards (``kind: whole``): Cluster Autoscaler copies
  a node that offers them. The placeholder asks for all cards of a node, and excludes the present nodes: by their
  hostnames, and for Karpenter by a label that the node's agent writes (:data:`_READ_LABEL`).

Present nodes are excluded one by one, since Cluster Autoscaler gives a copy all labels of its Ready node but the
hostname. One that is left out would take the placeholder whenever its cards are free; the controller would delete it
and ask again, and so on. So a group gets no placeholder if it has more nodes than one can name (:func:`can_exclude`).

Besides, it asks for the CPU, memory and other resources that each of its pods asks for, so that an autoscaler makes no
node for a pod that no machine can take. It asks for the least of them: a pod that asks for too much must not keep nodes
from others.

A placeholder preempts nothing: an excluded node would not fit even if it were empty.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.api.names import HOSTNAME_LABEL, WHOLE_CARDS
from tessera.api.nodes.node_groups import GroupKind, NodeGroup
from tessera.controller.objects.resource_amounts import Amounts
from tessera.kube.resources import Pod

#: Most nodes: present nodes that a placeholder of a group names, so that it is not bound to them; a larger group gets
#: no more. The nodes that Kubernetes supports in a cluster; a placeholder then has some 300 kB, of 1.5 MB that it may
#: have.
PASSED_HOSTS = 5_000

#: The value of ``app.kubernetes.io/name`` of all placeholders.
PLACEHOLDER = "tessera-placeholder"
#: Label of a placeholder: its group.
GROUP_LABEL = "tessera.dev/node-group"
#: Label of a placeholder: :func:`group_version` of its group when it was made.
VERSION_LABEL = "tessera.dev/node-group-version"
#: Label that feature discovery, ours and NVIDIA's, writes on every node with cards, and no cloud: a node with it has
#: been read. (``nvidia.com/gfd.timestamp`` can be switched off.) Karpenter makes nodes for pods that exclude a label
#: which its NodePool does not set.
_READ_LABEL = "nvidia.com/gpu.machine"
_GPU = WHOLE_CARDS
#: What a placeholder asks for if its pods ask for less: thousandths of a CPU, and bytes.
_CPU, _MEMORY = 10, 16 << 20
_KARPENTER = "karpenter."
_APP = "app.kubernetes.io/name"


def placeholder_labels(group: str, version: str = "") -> dict[str, str]:
    """Returns the labels of a group's placeholders; see :func:`group_version`."""
    made_of = {VERSION_LABEL: version} if version else {}
    return {_APP: PLACEHOLDER, "app.kubernetes.io/part-of": "tessera", GROUP_LABEL: group, **made_of}


def group_version(group: NodeGroup, least: Amounts) -> str:
    """Returns a text that changes with what a placeholder takes from its group and its pods.

    So one that was made before is found.
    """
    facts = (group.selector, group.taints, group.cards, least)
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:16]


def is_placeholder(labels: Mapping[str, str]) -> bool:
    """True for an object with the labels of a placeholder."""
    return labels.get(_APP) == PLACEHOLDER and GROUP_LABEL in labels


def asks_for_cards(group: NodeGroup, *, has_ready: bool) -> bool:
    """True if a placeholder must ask for whole cards; else it asks for a node of its own.

    Args:
        group: its group.
        has_ready: one of its nodes is Ready.
    """
    return not has_ready or is_karpenters(group) or group.cards.kind is GroupKind.WHOLE


def can_exclude(group: NodeGroup, nodes: int) -> bool:
    """True if a placeholder of a group can exclude so many present nodes."""
    return nodes <= PASSED_HOSTS or is_karpenters(group)


def is_karpenters(group: NodeGroup) -> bool:
    """True if Karpenter makes the nodes of a group: it chooses the machine by what a pod asks for."""
    return any(key.startswith(_KARPENTER) for key in group.selector)


def has_cards(pod: Pod) -> bool:
    """True if a placeholder asks for whole cards."""
    return any(_GPU in container.resources.limits for container in pod.spec.containers)


def pod_spec(group: NodeGroup, image: str, hosts: Iterable[str], *, has_ready: bool, least: Amounts) -> dict[str, Any]:
    """Returns the spec of a placeholder.

    Args:
        group: its group.
        image: is never pulled, but policies of a cluster may check it.
        hosts: hostnames of all nodes of the group, as many as :func:`can_exclude` allows.
        has_ready: one of these nodes is Ready.
        least: what each pod that it stands for asks for, so that no node is made that is too small for all of them.
    """
    excluded = sorted(hosts)
    own_node = not asks_for_cards(group, has_ready=has_ready)
    limits = _quantities(least) | ({} if own_node else {_GPU: str(group.cards.count)})
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "nodeSelector": dict(group.selector),
        "tolerations": [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
            for taint in group.taints
        ],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "placeholder",
                "image": image,
                "resources": {"requests": dict(limits), "limits": limits},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "never-there", "mountPath": "/never-there"}],
            }
        ],
        "volumes": [{"name": "never-there", "configMap": {"name": "tessera-placeholder-never-starts"}}],
    }
    other: dict[str, Any]
    if own_node:
        other = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": excluded}
        repelled = {"labelSelector": {"matchLabels": {_APP: PLACEHOLDER}}, "topologyKey": HOSTNAME_LABEL}
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _one_term(other)},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [repelled]},
        }
    elif group.cards.kind is GroupKind.WHOLE and excluded:
        other = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": excluded}
        if is_karpenters(group):
            other = {"key": _READ_LABEL, "operator": "DoesNotExist"}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _one_term(other)}}
    return spec


def _quantities(least: Amounts) -> dict[str, str]:
    amounts = {**least, "cpu": max(_CPU, least.get("cpu", 0)), "memory": max(_MEMORY, least.get("memory", 0))}
    return {name: f"{amount}m" if name == "cpu" else f"{amount}" for name, amount in amounts.items()}


def _one_term(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
