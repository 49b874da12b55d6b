"""A whole cluster on virtual time in one process: the lab, with Tessera installed from deploy/, without sockets."""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import (
    INSTASLICE_NAMESPACE,
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    MIG_RESOURCE_PREFIX,
    QUOTA_RESOURCE,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.doctor.manifests import install_manifests
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import (
    CONFIGMAPS,
    CRDS,
    EVENTS,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    REPLICASETS,
    CoreEvent,
    Node,
    Pod,
)
from tessera.nvml.interface import GpuUuid
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.cli.own_commands import own_commands
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.installation.install import build_entrypoint

COMMANDS = own_commands()
#: Runs Tessera's own containers, as its command line does.
ENTRYPOINT = build_entrypoint(COMMANDS)
#: Simulated seconds that anything may take; an hour of them costs milliseconds.
TIMEOUT = 600.0


class VirtualLab:
    """The cluster and what a test does with it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.client = cluster.client("test")
        rng = random.Random(0)
        self.pods = Informer(self.client, PODS, clock=self.clock, rng=rng, namespace="default")
        self.events = Informer(self.client, EVENTS, clock=self.clock, rng=rng, namespace="default")
        self.slices = Informer(self.client, INSTASLICES, clock=self.clock, rng=rng, namespace=INSTASLICE_NAMESPACE)
        self.nodes = Informer(self.client, NODES, clock=self.clock, rng=rng)
        self.hooks = Informer(self.client, MUTATING_WEBHOOKS.as_dicts(), clock=self.clock, rng=rng)
        self.watched = InformerGroup(self.pods, self.slices, self.events, self.nodes, self.hooks)

    async def create(
        self, name: str, *containers: Mapping[str, int | str], command: str = "sleep infinity", **spec: Any
    ) -> None:
        """A pod whose containers have the given limits; ``spec`` adds to its spec."""
        await self.client.create(PODS.as_dicts(), manifest(name, *containers, command=command, **spec), "default")

    async def create_owned(self, name: str, *containers: Mapping[str, int], replicas: int = 1) -> None:
        """A ReplicaSet of such pods."""
        labels = {"app": name}
        spec = manifest(name, *containers, restartPolicy="Always")["spec"]
        template = {"metadata": {"labels": labels}, "spec": spec}
        await self.client.create(
            REPLICASETS.as_dicts(),
            {
                "metadata": {"name": name},
                "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
            },
            "default",
        )

    async def delete_owned(self, name: str) -> None:
        """Deletes a ReplicaSet and waits until its pods are gone."""
        await self.client.delete(REPLICASETS, name, "default", propagation="Background")
        await self.until(lambda: not self._owned(name), f"the pods of {name} are gone")

    def ready_of(self, name: str) -> str:
        """The name of the ReplicaSet's pod that runs; empty if none does."""
        return next((pod for pod in self._owned(name) if self.ready(pod)), "")

    def _owned(self, name: str) -> list[str]:
        return [pod.metadata.name for pod in self.pods.cache.values() if pod.metadata.labels.get("app") == name]

    async def delete_kind(self) -> None:
        """Deletes the definition of Instaslice, and waits until everybody may have seen it."""
        await self.client.delete(CRDS, INSTASLICES.label)
        await self.clock.sleep(60)

    async def restore_kind(self) -> None:
        """Creates the definition of Instaslice, as an installation does."""
        (found,) = [each for each in install_manifests() if each["metadata"]["name"] == INSTASLICES.label]
        await self.client.create(CRDS.as_dicts(), found)

    async def delete(self, name: str) -> None:
        """Deletes a pod at once."""
        await self.client.delete(PODS, name, "default", grace_seconds=0)

    async def kill(self, app: str = "tessera-controller", *, grace_seconds: int | None = 0) -> None:
        """Ends all pods of one of Tessera's programs; its Deployment or DaemonSet makes others."""
        found = await self.client.list(PODS, "tessera-system", label_selector=f"app.kubernetes.io/name={app}")
        for pod in found.items:
            await self.client.delete(PODS, pod.metadata.name, "tessera-system", grace_seconds=grace_seconds)

    async def join(self, node: str) -> None:
        """Gives a node's cards to on-demand slicing."""
        await self.client.merge_patch(NODES, node, {"metadata": {"labels": {MIG_CONFIG_LABEL: MIG_CONFIG_DYNAMIC}}})

    async def leave(self, node: str) -> None:
        """Takes a node back, and waits until it has left."""
        await self.client.merge_patch(NODES, node, {"metadata": {"labels": {MIG_CONFIG_LABEL: "all-disabled"}}})
        await self.until(lambda: f"{INSTASLICE_NAMESPACE}/{node}" not in self.slices.cache, f"{node} has left")

    async def label(self, node: str, **labels: str | None) -> None:
        """Sets or removes labels of a node that ask for something; ``layout`` and ``profile`` are the two there are."""
        keys = {"layout": MIG_CONFIG_LABEL, "profile": PROFILE_LABEL}
        patch = {"metadata": {"labels": {keys[name]: value for name, value in labels.items()}}}
        await self.client.merge_patch(NODES, node, patch)

    async def config_map(self, name: str, data: dict[str, str]) -> None:
        """Puts files into a ConfigMap that the agents follow."""
        await self.client.apply(CONFIGMAPS.as_dicts(), name, {"data": data}, "tessera-system")

    def gpus(self, node: str = "node-1") -> dict[str, int]:
        """Returns NVIDIA's resources that a node offers, those at 0 left out."""
        seen = self.nodes.cache.get(node)
        told = seen.status.allocatable if seen is not None else {}
        return {name: int(text) for name, text in told.items() if name.startswith("nvidia.com/") and text != "0"}

    async def becomes(self, wanted: dict[str, int], node: str = "node-1") -> None:
        """Waits until a node offers just this."""
        await self.until(lambda: self.gpus(node) == wanted, f"{node} offers {wanted}")

    def condition(self, type_: str, node: str = "node-1") -> tuple[str, str, str]:
        """Status, reason and message of a node's condition; empty texts if it has none."""
        seen = self.nodes.cache.get(node)
        for each in seen.status.conditions if seen is not None else ():
            if each.type == type_:
                return each.status, each.reason, each.message
        return "", "", ""

    def tells(self, node: str) -> bool:
        """True if a node has published its offers, and a condition that reports the desired sharing profile."""
        seen = self.nodes.cache.get(node)
        told = seen is not None and OFFERS_ANNOTATION in seen.metadata.annotations
        return told and self.condition("GpuSharingApplied", node)[0] != ""

    def offers(self, node: str) -> bool:
        """True if a node has published its cards, and the scheduler sees the positions of their slices."""
        told = self.slices.cache.get(f"{INSTASLICE_NAMESPACE}/{node}")
        seen = self.nodes.cache.get(node)
        return (
            told is not None
            and bool(told.status.node_resources.node_gpus)
            and seen is not None
            and QUOTA_RESOURCE in seen.status.allocatable
            and any(name.startswith(MIG_RESOURCE_PREFIX) for name in seen.status.allocatable)
        )

    def trusts_webhook(self) -> bool:
        """True if both replicas of the webhook have written the same authority into its configuration."""
        (configuration,) = self.hooks.cache.values() or ({},)
        bundles = [hook["clientConfig"].get("caBundle") for hook in configuration.get("webhooks", ())]
        return bool(bundles) and all(bundles)

    def pod(self, name: str) -> Pod | None:
        """A pod as last seen."""
        return self.pods.cache.get(f"default/{name}")

    def existing_pod(self, name: str) -> Pod:
        """A pod that is there, as last seen."""
        found = self.pod(name)
        assert found is not None, f"there is no pod {name}"
        return found

    def existing_node(self, name: str = "node-1") -> Node:
        """A node that is there, as last seen."""
        found = self.nodes.cache.get(name)
        assert found is not None, f"there is no node {name}"
        return found

    def machine(self, node: str = "node-1") -> SimulatedMachine:
        """The machine with cards that is a node."""
        found = self.cluster.nodes[node].machine
        assert found is not None, f"{node} has no cards"
        return found

    def gates(self, name: str) -> list[str]:
        """The names of a pod's scheduling gates."""
        pod = self.pod(name)
        return [] if pod is None else [each.name for each in pod.spec.scheduling_gates]

    def node_of(self, name: str) -> str:
        """The node to which a pod is bound; empty if to none, or if there is no such pod."""
        found = self.pod(name)
        return found.spec.node_name if found is not None else ""

    def is_free(self, name: str) -> bool:
        """True for a pod that has no scheduling gate any more."""
        return self.pod(name) is not None and not self.gates(name)

    def ready(self, name: str) -> bool:
        """True if all containers of a pod run."""
        pod = self.pod(name)
        return pod is not None and any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)

    def phase(self, name: str) -> str:
        """A pod's phase; empty if there is none."""
        pod = self.pod(name)
        return pod.status.phase if pod is not None else ""

    async def until(self, found: Callable[..., Any], what: str, seconds: float = TIMEOUT) -> None:
        """Waits for a state of pods, events and Instaslice objects."""
        await self.watched.wait_until(lambda: found() or None, seconds, what)

    async def running(self, *names: str) -> None:
        """Waits until all containers of the pods run."""
        await self.until(lambda: all(self.ready(name) for name in names), f"{names} run")

    async def empty(self) -> None:
        """Waits until no node holds any record of a slice."""
        await self.until(lambda: not any(self.results(node) for node in self.cluster.nodes), "no slice is recorded")

    def instaslice(self, node: str = "node-1") -> Instaslice:
        """A node's object."""
        found = self.slices.cache.get(f"{INSTASLICE_NAMESPACE}/{node}")
        assert found is not None
        return found

    def results(self, node: str = "node-1") -> dict[str, Any]:
        """A node's allocations by pod UID."""
        return self.instaslice(node).status.pod_allocation_results

    def settled(self, name: str) -> bool:
        """True if the pod's record reads ungated and created."""
        pod = self.pod(name)
        for node in self.cluster.nodes:
            found = self.results(node).get(pod.metadata.uid) if pod is not None else None
            if found is not None:
                status = found.allocation_status
                return (status.allocation_status_controller, status.allocation_status_daemonset) == (
                    "ungated",
                    "created",
                )
        return False

    def hardware(self, node: str = "node-1") -> list[tuple[GpuUuid, str, int]]:
        """The GPU instances that really are on the node's cards: card, profile, start."""
        machine = self.machine(node)
        return [(gpu, each.profile, each.start) for gpu in machine.uuids() for each in machine.instances(gpu)]

    def mig_uuids(self, node: str = "node-1") -> list[str]:
        """The MIG devices that really are on the node's cards."""
        machine = self.machine(node)
        instances = [each for gpu in machine.uuids() for each in machine.instances(gpu)]
        return [one.mig_uuid for each in instances for one in each.compute_instances]

    def devices(self, pod: str, container: str = "c0") -> list[Any]:
        """The UUIDs, of cards or of MIG devices, that a container was given."""
        return self.environment(pod, container)["NVIDIA_VISIBLE_DEVICES"].split(",")

    def environment(self, pod: str, container: str = "c0") -> Mapping[str, str]:
        """The environment of a container."""
        return self.cluster.nodes[self.existing_pod(pod).spec.node_name].pods.container_env("default", pod, container)

    def events_of(self, pod: str, reason: str) -> list[CoreEvent]:
        """A pod's events of one reason."""
        return [
            event
            for event in self.events.cache.values()
            if event.involved_object.name == pod and event.reason == reason
        ]

    def told_times(self, pod: str, reason: str, word: str) -> int:
        """Returns how many times the pod was told a reason with this word in it, repeats of one event counted."""
        return sum(event.count for event in self.events_of(pod, reason) if word in event.message)


def manifest(
    name: str, *containers: Mapping[str, int | str], command: str = "sleep infinity", **spec: Any
) -> dict[str, Any]:
    """A pod of containers ``c0``, ``c1``, … with the given limits."""
    made = [
        {"name": f"c{n}", "image": "busybox", "command": command.split(), "resources": {"limits": limits}}
        for n, limits in enumerate(containers)
    ]
    settings = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": made}
    return {"metadata": {"name": name}, "spec": {**settings, **spec}}


Scenario = Callable[[VirtualLab], Awaitable[Any]]


class InLab(Protocol):
    """Runs scenarios in labs that have just booted."""

    def __call__(
        self,
        scenario: Scenario,
        nodes: str = ...,
        cluster_type: Callable[..., SimulatedCluster] = ...,
        *,
        own: bool = ...,
        **options: Any,
    ) -> Any:
        """Returns what the scenario returns.

        Args:
            scenario: begins once all nodes have joined.
            nodes: as for ``tessera lab up --nodes``.
            cluster_type: how its parts reach each other.
            own: True for a cluster in the test's process, whose state the test sees; else it runs in a fork of it.
            options: of the cluster.
        """
        ...
