"""Runs the two experiments of Red Hat's article on any cluster, and measures their times.

**A new node.** Measures the time from a new node's Ready to a running GPU workload: adds a workload, removes it, and
repeats.

As Red Hat measured it: a pod that requests a GPU makes the autoscaler add a node. The time runs from the node's Ready
to the start of the pod's container. Then the pod is deleted, and the autoscaler removes the node. If no node comes, the
experiment prints the scheduler's and kubelet's messages as they change.

**A policy.** Measures the time from a ClusterPolicy to a node that lists its GPUs: applies the policy, deletes it, and
repeats.

As Red Hat measured it: first the node's capacity is clear, then the policy is applied, and the time runs until the node
lists at least one GPU. The node is watched, not polled.

Deleting the policy removes the driver of **every** node that the policy selects. Pods that use GPUs there must have
left before: the experiment refuses to start while there are some. An existing policy of the same name is restored at
the end, even after a failure. With an existing policy of another name the experiment refuses to start, since that
policy would keep selecting nodes.
"""

import copy
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.informer import EventKind, Informer, InformerGroup, WatchEvent
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.provisioning.timestamps import has_gpu_limits, read_node

#: Timeout of one step, seconds: a node may have to be made, and a removal waits for the autoscaler's own timers.
STEP_TIMEOUT = 4 * 3600.0
NAME = "tessera-bench"

#: Spec of the pod that requests a GPU, if the user names none.
WORKLOAD: Mapping[str, Any] = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 0,
    "containers": [
        {
            "name": "workload",
            "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1-ubi8",
            "command": ["sleep", "infinity"],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
    ],
}
#: Timeout of one step, seconds; kubelet forgets the devices of a missing plugin after 5 minutes.
POLICY_TIMEOUT = 3600.0


class Autoscale:
    """The experiment.

    Args:
        client: the cluster.
        clock: the clock that measures.
        namespace: namespace of the workload.
        rng: random numbers for the watch's jitter.
        step_timeout: seconds that a step may take before the experiment fails.
        report: called with the thing that is awaited, and with the obstacle in its way.

    Attributes:
        simulated: True if a measured node belongs to a lab.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        namespace: str,
        rng: random.Random,
        step_timeout: float = STEP_TIMEOUT,
        report: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.simulated = False
        self._report = report
        self._obstacle = ""
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._step_timeout = step_timeout
        self._nodes: Informer[Node] = Informer(client, NODES, clock=clock, rng=rng)
        self._pods: Informer[Pod] = Informer(
            client, PODS, clock=clock, rng=rng, namespace=namespace, field_selector=f"metadata.name={NAME}"
        )
        self._watched = InformerGroup(self._nodes, self._pods)
        self._ready: dict[str, float] = {}

    async def run(
        self, workload: Mapping[str, Any], repeats: int, *, each: Callable[[float], None] = lambda _seconds: None
    ) -> list[float]:
        """Measures samples: seconds from Ready to running.

        Args:
            workload: the spec of a pod that requests a GPU.
            repeats: number of samples.
            each: called with each sample.

        Raises:
            ValueError: the pod fitted on an existing node, so there is nothing to measure.
            TimeoutError: a step took too long; the text names it.
        """
        samples = []
        self._nodes.add_handler(self._note)
        self._pods.add_handler(lambda event: self._note_obstacle(event.object))
        async with self._watched.running():
            for _ in range(repeats):
                samples.append(await self._once(workload))
                each(samples[-1])
        return samples

    async def _once(self, workload: Mapping[str, Any]) -> float:
        before = set(self._nodes.cache.keys())
        pod = {"metadata": {"name": NAME}, "spec": dict(workload)}
        await self._client.create(PODS.as_dicts(), pod, self._namespace)
        try:
            await self._until(self._runs, f"pod {self._namespace}/{NAME} runs")
            now = self._clock.monotonic()
            node = self._node()
            if node in before:
                raise ValueError(
                    f"pod {self._namespace}/{NAME} ran on node {node}, which was there before: there was a free card, "
                    "so no node was made; let the autoscaler take free nodes away first"
                )
            # Nodes and pods have separate watches: one may show the pod running before the other shows the node Ready.
            if node not in self._ready:
                await self._until(lambda: node in self._ready, f"node {node} is seen to be Ready")
            taken = max(0.0, now - self._ready[node])
            made = self._nodes.cache.get(node)
            self.simulated |= made is not None and read_node(made).simulated
        finally:
            await self._remove()
        await self._until(lambda: node not in self._nodes.cache, f"the autoscaler has removed node {node}")
        return taken

    async def _remove(self) -> None:
        try:
            await self._client.delete(PODS, NAME, self._namespace, grace_seconds=0)
        except NotFound:
            return
        await self._until(lambda: self._pod() is None, f"pod {self._namespace}/{NAME} is gone")

    def _note(self, event: WatchEvent[Node]) -> None:
        node = event.object
        if node.status.is_ready and event.kind is not EventKind.DELETED:
            self._ready.setdefault(node.metadata.name, self._clock.monotonic())
        else:
            self._ready.pop(node.metadata.name, None)

    def _note_obstacle(self, pod: Pod) -> None:
        obstacle = _obstacle(pod)
        if obstacle and obstacle != self._obstacle:
            self._report(obstacle)
        self._obstacle = obstacle

    def _pod(self) -> Pod | None:
        return self._pods.cache.get(f"{self._namespace}/{NAME}")

    def _runs(self) -> bool:
        pod = self._pod()
        statuses = pod.status.container_statuses if pod is not None else ()
        return any(each.state is not None and each.state.running is not None for each in statuses)

    def _node(self) -> str:
        pod = self._pod()
        return pod.spec.node_name if pod is not None else ""

    async def _until(self, found: Callable[[], bool], what: str) -> None:
        self._report(f"waits until {what}")
        try:
            await self._watched.wait_until(found, self._step_timeout, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self._obstacle}" if self._obstacle else str(error)) from None


def _obstacle(pod: Pod) -> str:
    """Reason that a pod does not run, in the words of the component that it waits for; empty if there is no message."""
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False":
            return f"no node fits: {each.message or each.reason}"
    for status in pod.status.container_statuses:
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason:
            return f"on node {pod.spec.node_name}: {': '.join(filter(None, (waiting.reason, waiting.message)))}"
    return ""


class PolicyReset:
    """The experiment.

    Args:
        client: the cluster.
        clock: the clock that measures.
        node: the node to watch.
        resource: the resource that its capacity must list.
        rng: random numbers for the watch's jitter.
        step_timeout: seconds that a step may take before the experiment fails.
        report: called with the thing that is awaited.

    Attributes:
        simulated: True if the node belongs to a lab.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        node: str,
        resource: str = "nvidia.com/gpu",
        rng: random.Random,
        step_timeout: float = POLICY_TIMEOUT,
        report: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.simulated = False
        self._report = report
        self._client = client
        self._clock = clock
        self._node = node
        self._resource = resource
        self._step_timeout = step_timeout
        selector = f"metadata.name={node}"
        self._nodes: Informer[Node] = Informer(client, NODES, clock=clock, rng=rng, field_selector=selector)
        self._pods: Informer[Pod] = Informer(client, PODS, clock=clock, rng=rng, field_selector=f"spec.nodeName={node}")
        self._policies: Informer[dict[str, Any]] = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._watched = InformerGroup(self._nodes, self._pods, self._policies)

    async def run(
        self, policy: Mapping[str, Any], repeats: int, *, each: Callable[[float], None] = lambda _seconds: None
    ) -> list[float]:
        """Measures samples, one more than requested: the caller drops the first.

        Args:
            policy: the ClusterPolicy; its status and uid are ignored.
            repeats: number of samples that count.
            each: called with each sample.

        Raises:
            ValueError: pods use GPUs of the node, the node does not exist, or there is another policy.
            TimeoutError: a step took too long; the text names it.
        """
        samples = []
        name = policy["metadata"]["name"]
        async with self._watched.running():
            self._refuse()
            before = await self._before(name)
            try:
                for _ in range(repeats + 1):
                    samples.append(await self._once(policy))
                    each(samples[-1])
                await self._clear(name)
            finally:
                if before is not None:
                    await self._put_back(before)
        return samples

    async def _once(self, policy: Mapping[str, Any]) -> float:
        await self._clear(policy["metadata"]["name"])
        began = self._clock.monotonic()
        await self._client.create(CLUSTER_POLICIES, _fresh(policy))
        await self._until(lambda: self._count() > 0, f"node {self._node} lists {self._resource}")
        return self._clock.monotonic() - began

    async def _before(self, name: str) -> dict[str, Any] | None:
        """The existing policy of this name."""
        policies = {each["metadata"]["name"]: each for each in (await self._client.list(CLUSTER_POLICIES)).items}
        others = sorted(policies.keys() - {name})
        if others:
            raise ValueError(
                f"ClusterPolicy {others[0]} is there: of several the oldest counts, so {name} would change nothing; "
                f"call the one to be tried {others[0]}, which is put back at the end, or delete {others[0]}"
            )
        return policies.get(name)

    async def _put_back(self, before: Mapping[str, Any]) -> None:
        await self._delete(before["metadata"]["name"])
        await self._client.create(CLUSTER_POLICIES, _fresh(before))

    def _refuse(self) -> None:
        node = self._nodes.cache.get(self._node)
        if node is None:
            raise ValueError(f"node {self._node}: there is none of that name; kubectl get nodes lists them")
        self.simulated = read_node(node).simulated
        using = sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in self._pods.cache.values()
            if pod.status.phase not in {"Succeeded", "Failed"} and has_gpu_limits(pod)
        )
        if using:
            raise ValueError(
                f"node {self._node}: pods use its cards ({', '.join(using[:5])}); the experiment takes the driver "
                "away under them, so delete them or take another node"
            )

    async def _delete(self, name: str) -> None:
        """Deletes a policy and waits until it is gone; finalizers may delay that."""
        with suppress(NotFound):
            await self._client.delete(CLUSTER_POLICIES, name)
        await self._until(lambda: name not in self._policies.cache, f"ClusterPolicy {name} is gone")

    async def _clear(self, name: str) -> None:
        await self._delete(name)
        await self._until(lambda: self._count() == 0, f"capacity of node {self._node} is clear of {self._resource}")

    def _count(self) -> int:
        node = self._nodes.cache.get(self._node)
        text = "0" if node is None else node.status.capacity.get(self._resource, "0")
        return int(text) if text.isdecimal() else 0

    async def _until(self, found: Callable[[], bool], what: str) -> None:
        self._report(f"waits until {what}")
        await self._watched.wait_until(found, self._step_timeout, what)


def _fresh(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The object as its author wrote it, without the server's fields."""
    made = {key: copy.deepcopy(policy[key]) for key in ("apiVersion", "kind", "spec") if key in policy}
    metadata = {key: policy["metadata"][key] for key in ("name", "labels", "annotations") if key in policy["metadata"]}
    return {**made, "metadata": metadata}
