"""Checks of what the cluster must bring: Kubernetes, runtimes, clocks, and nobody else who manages the cards.

InstaSlice's own operator (the dynamic accelerator slicer) and Tessera cut the same cards and answer to the same gate.
Its versions up to v0.0.2 write the same Instaslice objects. The names are those of openshift/instaslice-operator:
v0.0.2, and its successor DAS, whose images are called ``das-...``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_cards import is_gpu_node
from tessera.clock import parse_time_or_zero
from tessera.doctor.facts import ClusterFacts, Finding, Refusal, error, not_examined, ok, unknown, warning
from tessera.kube.resources import Node
from tessera.text import count_noun, list_names

#: Names of its Deployment and of the DaemonSet that it makes.
_NAMES = frozenset({"instaslice-operator-controller-manager", "instaslice-operator-controller-daemonset"})
#: Beginnings of the last part of its images' names.
_IMAGES = ("instaslice", "das-operator", "das-daemonset")


def is_instaslice(workload: Mapping[str, Any]) -> bool:
    """True for a Deployment or DaemonSet of InstaSlice's that has pods or will have some."""
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    if spec.get("replicas", 1) == 0 or status.get("desiredNumberScheduled", 1) == 0:
        return False
    if workload["metadata"]["name"] in _NAMES:
        return True
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return any(str(each.get("image", "")).rpartition("/")[2].startswith(_IMAGES) for each in containers)


#: Next step, for messages that name the operator's workloads.
REMOVE_IT = (
    "delete its Deployment (with OLM: its Subscription and ClusterServiceVersion), then its DaemonSet, and keep its"
    " Instaslice objects: by them Tessera knows the slices of running pods (docs/from-nvidia.md#from-instaslice)"
)


#: The oldest Kubernetes: ValidatingAdmissionPolicy is v1 since 1.30, CDI devices of plugins are stable since 1.31.
OLDEST = (1, 31)
#: Feature gates that Tessera needs; all are on by default and stable.
GATES = (
    "PodSchedulingReadiness",
    "ValidatingAdmissionPolicy",
    "DevicePluginCDIDevices",
    "AdmissionWebhookMatchConditions",
)
#: Seconds by which clocks may differ: leases are renewed every 2 s and end after 15 s, certificates begin at once.
SKEW = 5.0
#: Seconds after which a Ready node's lease is too old (kubelet renews it every 10 s; its node is lost after 40 s).
LEASE_AGE = 60.0
#: Containers' names in DaemonSets of others that offer or cut the same cards, with what they do.
OTHERS: Mapping[str, str] = {
    "nvidia-device-plugin": "NVIDIA's device plugin offers the same cards",
    "nvidia-device-plugin-ctr": "NVIDIA's device plugin offers the same cards",
    "nvidia-mig-manager": "NVIDIA's MIG manager changes the same cards",
    "mps-control-daemon-ctr": "NVIDIA's MPS daemons use the same cards",
    "gpu-feature-discovery-ctr": "GPU feature discovery writes the same labels",
    "gpu-feature-discovery": "GPU feature discovery writes the same labels",
}
_RUNTIME = re.compile(r"([a-z-]+)://v?([0-9]+)\.([0-9]+)")
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)")


def check_platform(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields the findings of all checks of this module."""
    yield _api_version(facts.version)
    yield _feature_gates(facts.gates)
    if isinstance(facts.nodes, Refusal):
        yield not_examined("nodes", facts.nodes, needs="list nodes")
    else:
        yield from _nodes(facts.nodes)
    yield _others(facts)
    yield _external_metrics(facts.external_metrics)
    yield _own_clock(facts.skew)
    yield _node_clocks(facts)


def _external_metrics(server: str | Refusal) -> Finding:
    """Who serves external metrics: a cluster has one server of this API."""
    check = "external-metrics"
    if isinstance(server, Refusal):
        return not_examined(check, server)
    if not server:
        return ok(check, "nobody serves external.metrics.k8s.io; examples/services/external-metrics.yaml lets Tessera")
    text = f"external.metrics.k8s.io is served by {server}"
    own = server == f"{SYSTEM_NAMESPACE}/tessera-dashboard"
    return ok(check, text if own else f"{text}; scale by Tessera's signals with Prometheus rules or KEDA")


def _parse(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def _api_version(version: str | Refusal) -> Finding:
    if isinstance(version, Refusal):
        return not_examined("kubernetes", version)
    found = _parse(version)
    if found is None:
        return unknown("kubernetes", f'the version "{version}" is not understood')
    if found < OLDEST:
        advice = "upgrade the control plane: older servers lack kinds that Tessera's manifests use"
        return error("kubernetes", f"the API server is {version}; Tessera needs 1.31 or newer", advice)
    return ok("kubernetes", f"API server {version}")


def _feature_gates(gates: Mapping[str, bool] | Refusal) -> Finding:
    if isinstance(gates, Refusal):
        if gates.missing:
            return unknown("feature-gates", "not examined: the API server has no metrics")
        return not_examined("feature-gates", gates, needs="get the API server's /metrics")
    off = [name for name in GATES if gates.get(name) is False]
    if off:
        advice = "remove them from --feature-gates of the API server"
        return error("feature-gates", f"switched off: {', '.join(off)}", advice)
    return ok("feature-gates", "none that Tessera needs is switched off")


def _nodes(nodes: Sequence[Node]) -> Iterator[Finding]:
    cards = [each for each in nodes if _has_cards(each)]
    if not cards:
        advice = "label the nodes that have cards: kubectl label node NODE nvidia.com/gpu.present=true"
        yield warning("gpu-nodes", "no node is known to have NVIDIA GPUs", advice)
        return
    yield ok("gpu-nodes", f"{count_noun(len(cards), 'node')} with NVIDIA GPUs")
    yield _kubelets(cards)
    yield from _runtimes(cards)
    not_ready = [each.metadata.name for each in cards if not each.status.is_ready]
    if not_ready:
        yield warning("ready", f"not Ready: {list_names(not_ready)}", "see kubectl describe node", _named(not_ready))
    else:
        yield ok("ready", "all of them are Ready")


def _has_cards(node: Node) -> bool:
    """True if a node's labels or resources say that it has NVIDIA GPUs."""
    return is_gpu_node(node.metadata.labels) or any(name.startswith("nvidia.com/") for name in node.status.capacity)


def _kubelets(nodes: list[Node]) -> Finding:
    old = [
        each.metadata.name
        for each in nodes
        if (version := _parse(each.status.node_info.kubelet_version)) is not None and version < OLDEST
    ]
    if old:
        text = f"kubelet is older than 1.31 on {list_names(old)}"
        return error("kubelet", text, "upgrade these nodes: older kubelets ignore CDI devices", _named(old))
    return ok("kubelet", "1.31 or newer on all of them")


def _runtimes(nodes: list[Node]) -> Iterator[Finding]:
    too_old, by_setting, others = [], [], []
    for node in nodes:
        found = _RUNTIME.match(node.status.node_info.container_runtime_version)
        name, version = (found[1], (int(found[2]), int(found[3]))) if found else ("", (0, 0))
        if name == "containerd" and version < (1, 7):
            too_old.append(node.metadata.name)
        elif name == "containerd" and version < (2, 0):
            by_setting.append(node.metadata.name)
        elif name not in {"containerd", "cri-o", "simulated"}:
            others.append(node.metadata.name)
    if too_old:
        text = f"containerd is older than 1.7 on {list_names(too_old)}, and has no CDI"
        yield error("runtime", text, "upgrade containerd to 2, or to 1.7 with enable_cdi = true", _named(too_old))
    if others:
        text = f"the container runtime of {list_names(others)} is not known to read CDI files"
        yield warning(
            "runtime",
            text,
            "use containerd 1.7 or newer, or CRI-O; Docker with the settings of tessera config runtime docker",
            _named(others),
        )
    if by_setting:
        text = f"containerd 1.7 on {list_names(by_setting)}: CDI is off by default"
        advice = "set enable_cdi = true in /etc/containerd/config.toml, or upgrade to containerd 2"
        yield warning("runtime", text, advice, _named(by_setting))
    if not (too_old or others or by_setting):
        yield ok("runtime", "all of them read CDI files")


def _others(facts: ClusterFacts) -> Finding:
    if isinstance(facts.daemon_sets, Refusal):
        return not_examined("others", facts.daemon_sets, needs="list daemonsets")
    found, instaslice = {}, False
    for each in facts.daemon_sets:
        metadata = each["metadata"]
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        if not each.get("status", {}).get("desiredNumberScheduled", 0):
            continue
        name = f"daemonset/{metadata['name']} in {metadata['namespace']}"
        if is_instaslice(each):
            found[name], instaslice = "InstaSlice slices the same cards", True
        for container in pod.get("containers", ()):
            if container.get("name") in OTHERS:
                found[name] = OTHERS[container["name"]]
    if found:
        text = "; ".join(f"{name}: {what}" for name, what in list(found.items())[:5])
        nvidia = "tessera install --adopt takes the nodes over from NVIDIA's programs (docs/from-nvidia.md)"
        advice = f"InstaSlice: {REMOVE_IT}" if instaslice else nvidia
        return error("others", text, advice, list(found))
    return ok("others", "nobody else offers or cuts the cards")


def _own_clock(skew: float | Refusal) -> Finding:
    if isinstance(skew, Refusal):
        return not_examined("clock", skew)
    if abs(skew) > SKEW:
        side = "behind" if skew > 0 else "ahead of"
        text = f"this machine's clock is {abs(skew):.0f} s {side} the API server's"
        return warning("clock", text, "set the clock: ages in outputs are wrong by that, and tokens may be refused")
    return ok("clock", "this machine and the API server agree")


def _node_clocks(facts: ClusterFacts) -> Finding:
    """Kubelet writes its own time into its node's lease: one in the future comes from a clock that is ahead."""
    leases, nodes = facts.node_leases, facts.nodes
    if isinstance(leases, Refusal):
        return not_examined("node-clocks", leases, needs="list leases in kube-node-lease")
    if isinstance(nodes, Refusal):
        return not_examined("node-clocks", nodes, needs="list nodes")
    ready = {each.metadata.name for each in nodes if each.status.is_ready}
    ahead, behind = [], []
    for each in leases:
        name, text = each["metadata"]["name"], (each.get("spec") or {}).get("renewTime")
        renewed = parse_time_or_zero(text if isinstance(text, str) else None)
        if name not in ready or not renewed:
            continue
        if renewed - facts.now > SKEW:
            ahead.append(name)
        elif facts.now - renewed > LEASE_AGE:
            behind.append(name)
    if ahead or behind:
        parts = [f"ahead: {list_names(ahead)}"] if ahead else []
        parts += [f"behind, or kubelet is late: {list_names(behind)}"] if behind else []
        advice = "set the nodes' clocks (NTP): leases and certificates depend on them"
        return warning("node-clocks", "; ".join(parts), advice, _named([*ahead, *behind]))
    return ok("node-clocks", f"{count_noun(len(ready), 'Ready node')} and the API server agree")


def _named(nodes: list[str]) -> list[str]:
    return [f"node/{each}" for each in nodes]
