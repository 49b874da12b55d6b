"""Measures the time from a ClusterPolicy to a node that lists its GPUs: applies the policy, deletes it, and repeats.

As Red Hat measured it: first the node's capacity is clear, then the policy is applied, and the time runs until the node
lists at least one GPU. The node is watched, not polled.

Deleting the policy removes the driver of **every** node that the policy selects. Pods that use GPUs there must have
left
before: the experiment refuses to start while there are some. An existing policy of the same name is restored at the
end, even after a failure. With an existing policy of another name the experiment refuses to start, since that policy
would keep selecting nodes.
"""

import copy
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.kube.watch.informer import Informer, InformerGroup
from tessera.provisioning.timestamps import has_gpu_limits, read_node

#: Timeout of one step, seconds; kubelet forgets the devices of a missing plugin after 5 minutes.
STEP_TIMEOUT = 3600.0


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
        step_timeout: float = STEP_TIMEOUT,
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
