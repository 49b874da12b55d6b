"""A cluster with Kueue and Tessera, as a test of both sees it: the lab with the stand-in, or any by its kubeconfig."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

from tests.support.kueue.visibility import reader

from tessera.api.pod_annotations import KUEUE_COUNT_ANNOTATION, KUEUE_GROUP_NAME
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.quantity import parse_quantity
from tessera.kube.requests import Transport
from tessera.kube.resources import DEPLOYMENTS, JOBS, NAMESPACES, PODS, STATEFULSETS
from tessera.kube.resources.meta import Resource, resource_for
from tessera.kueue.configuration import ALL_CARDS, CardPool, SideQuota, TeamQuota, make_queues
from tessera.kueue.objects import CHARGED_RESOURCE, CHECK_NAME, QUEUE_LABEL, Version
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.cluster.cluster import ADMIN
from tessera_lab.cluster.remote_nodes import ImpersonatingTransport
from tessera_lab.kueue.workloads import condition, is_true, kind

Json = dict[str, Any]
#: Seconds that anything may take.
TIMEOUT = 180.0
IMAGE = "registry.k8s.io/pause:3.10"


class KueueCluster:
    """A namespace with a queue, and what a test does in it.

    Args:
        client: an administrator.
        clock: virtual time in the lab.
        version: of Kueue's API.
        namespace: the test's own; its ClusterQueue has the same name.
        at: the lab's API server, or the connection of an administrator to another cluster.

    Attributes:
        reader: as the client, also for the visibility API.
    """

    def __init__(
        self, client: Client, clock: Clock, version: Version, namespace: str, at: ApiServer | Transport
    ) -> None:
        self.client = client
        self._at = at
        self.clock = clock
        self.version: Version = version
        self.namespace = namespace
        self.workloads = kind("workloads", "Workload", version, namespaced=True)
        self.reader = self._as(ADMIN) if isinstance(at, ApiServer) else client

    def as_user(self, name: str, *, positions: bool = True) -> Client:
        """A client of a person; without ``positions``, one who may not read the visibility API."""
        return self._as(UserInfo(name=name, groups=("system:authenticated",)), positions=positions)

    def _as(self, user: UserInfo, *, positions: bool = True) -> Client:
        if isinstance(self._at, ApiServer):
            inner = InProcessTransport(self._at, user)
            return reader(inner, self.client, self.version, self.clock, allowed=positions)
        return Client(ImpersonatingTransport(self._at, user), field_manager="user", clock=self.clock)

    async def open_queue(
        self, gigabytes: int, *, checked: bool = False, labels: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """Makes the namespace, and a queue with this much GPU memory; ``spec`` adds to the ClusterQueue's."""
        await self.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": self.namespace}})
        pool = CardPool(flavor=ALL_CARDS, node_labels=labels or {})
        team = TeamQuota(namespace=self.namespace, gigabytes={ALL_CARDS: gigabytes})
        side = SideQuota(cpu="64", memory="64Gi")
        for each in make_queues([pool], [team], version=self.version, side=side, local_queue="slices", checked=checked):
            item = {**each, "spec": {**each.get("spec", {}), **(spec if each["kind"] == "ClusterQueue" else {})}}
            meta = each["metadata"]
            await self.client.apply(resource_for(each), meta["name"], item, meta.get("namespace"))

    async def is_checked(self) -> bool:
        """True if Tessera has seen the admission check."""
        check = await self.client.get(kind("admissionchecks", "AdmissionCheck", self.version), CHECK_NAME)
        return is_true(check, "Active")

    # Workloads of each kind

    async def pod(
        self,
        name: str,
        profile: str = "3g.20gb",
        *,
        count: int = 1,
        group: str = "",
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod in the queue; a member of a group of ``count`` pods if it names one."""
        labels = {QUEUE_LABEL: "slices", **({KUEUE_GROUP_NAME: group} if group else {}), **(labels or {})}
        annotations = {KUEUE_COUNT_ANNOTATION: str(count)} if group else {}
        body = {
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {**pod_spec(profile), **spec},
        }
        await self.client.create(PODS.as_dicts(), body, self.namespace)

    async def priority(self, name: str, value: int) -> None:
        """A PriorityClass."""
        classes: Resource[Json] = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict)
        await self.client.create(classes, {"metadata": {"name": name}, "value": value})

    async def job(self, name: str, template: Json, *, parallelism: int = 1) -> None:
        """A Job in the queue."""
        spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
        body = {"metadata": {"name": name, "labels": {QUEUE_LABEL: "slices"}}, "spec": spec}
        await self.client.create(JOBS.as_dicts(), body, self.namespace)

    async def deployment(self, name: str, profile: str = "3g.20gb", *, replicas: int = 1) -> None:
        """A Deployment in the queue."""
        await self._replicated(DEPLOYMENTS, name, profile, replicas)

    async def stateful_set(self, name: str, profile: str = "3g.20gb", *, replicas: int = 1) -> None:
        """A StatefulSet in the queue, which makes a pod only once the one before is ready."""
        await self._replicated(STATEFULSETS, name, profile, replicas, serviceName=name)

    async def _replicated(self, resource: Resource[Any], name: str, profile: str, replicas: int, **more: Any) -> None:
        labels = {"app": name}
        spec = {**pod_spec(profile), "restartPolicy": "Always"}
        body = {
            "metadata": {"name": name, "labels": {QUEUE_LABEL: "slices"}},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
                **more,
            },
        }
        await self.client.create(resource.as_dicts(), body, self.namespace)

    # What is there

    async def pods(self) -> list[Json]:
        """The namespace's pods, oldest first."""
        found = (await self.client.list(PODS.as_dicts(), self.namespace)).items
        return sorted(found, key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))

    async def running(self) -> list[str]:
        """The names of pods whose containers run."""
        return [each["metadata"]["name"] for each in await self.pods() if is_true(each, "Ready")]

    async def workload(self, owner: str) -> Json | None:
        """The Workload of an object, by the object's name."""
        found = (await self.client.list(self.workloads, self.namespace)).items
        owned = [
            each for each in found if owner in {one["name"] for one in each["metadata"].get("ownerReferences") or ()}
        ]
        return owned[0] if owned else None

    async def reason(self, owner: str, type_: str = "QuotaReserved") -> str:
        """The message of a condition of an object's Workload; empty if there is none."""
        item = await self.workload(owner)
        found = condition(item, type_) if item is not None else None
        return found["message"] if found is not None else ""

    async def reserved(self) -> int:
        """Gi of GPU memory that the queue has reserved."""
        queue = await self.client.get(kind("clusterqueues", "ClusterQueue", self.version), self.namespace)
        amounts = [
            parse_quantity(str(each.get("total", "0")))
            for flavor in queue.get("status", {}).get("flavorsReservation") or ()
            for each in flavor["resources"]
            if each["name"] == CHARGED_RESOURCE
        ]
        return int(sum(amounts, Decimal(0)) / 2**30)

    async def until(self, found: Callable[[], Awaitable[Any]], what: str, seconds: float = TIMEOUT) -> None:
        """Waits for something.

        Raises:
            AssertionError: it did not come in time.
        """
        end = self.clock.monotonic() + seconds
        while not await found():
            assert self.clock.monotonic() < end, f"not within {seconds} s: {what}"
            await self.clock.sleep(1)

    async def stays(self, found: Callable[[], Awaitable[Any]], what: str, seconds: float) -> None:
        """Checks that something holds for a while.

        Raises:
            AssertionError: it ended.
        """
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            assert await found(), f"no longer: {what}"
            await self.clock.sleep(1)

    async def close(self) -> None:
        """Deletes what the test made, and waits for its end, so that the next test finds the cluster empty.

        The Workloads go first: the end of a namespace waits for its pods, and Kueue holds the pods of a group by a
        finalizer while their Workload is there.
        """
        made: tuple[Resource[Any], ...] = (JOBS, DEPLOYMENTS, STATEFULSETS, PODS, self.workloads)
        for resource in made:
            for each in (await self.client.list(resource.as_dicts(), self.namespace)).items:
                await self._delete(resource, each["metadata"]["name"], self.namespace)
        own: tuple[Resource[Any], ...] = (NAMESPACES, kind("clusterqueues", "ClusterQueue", self.version))
        for resource in own:
            await self._delete(resource, self.namespace)

        async def gone() -> bool:
            return not any([await self._exists(resource) for resource in own])

        await self.until(gone, f"the namespace {self.namespace} and its queue have ended")

    async def _delete(self, resource: Resource[Any], name: str, namespace: str | None = None) -> None:
        with suppress(NotFound):
            await self.client.delete(resource, name, namespace, propagation="Background")

    async def _exists(self, resource: Resource[Any]) -> bool:
        try:
            await self.client.get(resource, self.namespace)
        except NotFound:
            return False
        return True


def pod_spec(profile: str = "") -> Json:
    """A spec of one container with one slice; without a profile it asks for nothing."""
    resources = {"resources": {"limits": {f"nvidia.com/mig-{profile}": 1}}} if profile else {}
    container = {"name": "main", "image": IMAGE, "command": ["sleep", "infinity"], **resources}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}


def template(profile: str = "", **annotations: str) -> Json:
    """A Job's template; annotations are requirements by their last word."""
    written = {f"tessera.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {"metadata": {"annotations": written}, "spec": pod_spec(profile)}
