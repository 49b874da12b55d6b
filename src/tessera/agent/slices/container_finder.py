"""Finds the container that starts when kubelet asks to prepare devices and names no container.

Kubelet gives only IDs of one resource. Its pod-resources API lists the holders of IDs: app containers and sidecars from
the pod's admission on, but no ordinary init container. Kubelet gives the devices of an ordinary init container to those
that come after it, so a listed container may hold the devices with which an init container starts:

1.  A listed container holds exactly these IDs, and no init container before it asks for so many: it starts.
2.  No listed container holds exactly these, but some of them: an init container starts. Its app containers take the
    devices over.
3.  If both are possible, the pod's status decides (below). If both containers would get the same slices, either will
    do. An app container never counts as starting before its init containers have ended.
4.  No container holds any of them: an init container starts, and no later container takes over its devices. After a
    short wait the devices go to a pod on this node that has such an init container, was promised them and has not
    claimed them. A pod whose earlier init container holds some of the devices comes first, since kubelet gives these to
    no other pod; then the pod to which these very positions were promised, then the oldest promise: slices of one
    profile are alike. As long as a pod without a promise has such an init container too, no pod gets them: that pod may
    be the one that starts.

The IDs of an init container with several profiles come in several calls, one after the other. The finder joins them as
they come; the last call has them all.

Which containers kubelet can be starting, by a pod's spec and status (``pkg/kubelet/kuberuntime``, ``computePodActions``
and ``computeInitContainerActions``):

1.  Ordinary init containers run one after the other, each until it has ended well.
2.  A restartable init container (sidecar) starts when all ordinary ones before it have ended well.
3.  An app container starts when all ordinary init containers have ended well.
4.  A container that runs does not start.
5.  In a new sandbox everything begins anew: all ordinary init containers run again. The results of those that ended in
    the former sandbox stay in the status. A status without a sandbox has condition ``PodReadyToStartContainers``
    ``False`` (1.29 and newer). With a sandbox, a result is that of a former sandbox if the init container ended before
    the one in front of it ended; or if a sidecar in front of it started later, and it ended more than
    :data:`STATUS_LAG` before the condition became ``True``.

A status may be behind kubelet, never ahead. If by a status no container can be starting, that status is behind.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.agent.slices.slice_table import SliceTable, claim_of
from tessera.api.names import MIG_RESOURCE_PREFIX, PodUid
from tessera.clock import parse_rfc3339
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Condition, Container, ContainerState, Pod
from tessera.kubelet.interfaces import ContainerResources, PluginError, PodResources

_NOT_STARTED = ContainerState()
_SANDBOX_READY = "PodReadyToStartContainers"
#: Seconds by which a container may end before kubelet reports the sandbox in which it ran. Kubelet reports a sandbox in
#: the first sync after it started a container there; its relist of containers, each second, causes that sync.
STATUS_LAG = 10.0


def may_start(pod: Pod) -> frozenset[str]:
    """Names of the containers that can be starting, if the pod's status is up to date."""
    states = {each.name: each.state or _NOT_STARTED for each in pod.status.containers}
    finished = frozenset(_find_finished_inits(pod, states))
    able: set[str] = set()
    for container in pod.spec.init_containers:
        if not is_sidecar(container) and container.name not in finished:
            return frozenset(able | {container.name}) - _list_running(states)
        if is_sidecar(container):
            able.add(container.name)
    return frozenset(able | {each.name for each in pod.spec.containers}) - _list_running(states)


def is_sidecar(container: Container) -> bool:
    """True if an init container is restartable, so that it runs beside later containers."""
    return container.restart_policy == "Always"


def _find_finished_inits(pod: Pod, states: Mapping[str, ContainerState]) -> Iterator[str]:
    """The ordinary init containers that have ended well in the present sandbox; see rule 5."""
    sandbox = pod.status.condition(_SANDBOX_READY)
    if sandbox is not None and sandbox.status == "False":
        return
    before = sidecar_started = ""
    for container in pod.spec.init_containers:
        state = states.get(container.name, _NOT_STARTED)
        if is_sidecar(container):
            started = state.running.started_at if state.running is not None else None
            sidecar_started = max(sidecar_started, started or "")
            continue
        ended = state.terminated
        if ended is None or ended.exit_code != 0:
            return
        at = ended.finished_at or ""
        if at < before or (at < sidecar_started and _is_older(at, sandbox)):
            return
        before = at
        yield container.name


def _is_older(finished_at: str, sandbox: Condition | None) -> bool:
    """True if a container ended too early to have run in the sandbox of a condition."""
    if sandbox is None or not sandbox.last_transition_time:
        return False
    try:
        return parse_rfc3339(finished_at) + STATUS_LAG < parse_rfc3339(sandbox.last_transition_time)
    except ValueError:
        return False


def _list_running(states: Mapping[str, ContainerState]) -> frozenset[str]:
    return frozenset(name for name, state in states.items() if state.running is not None)


#: A container that pod-resources lists, with all devices of one resource that it holds.
ListedContainer = tuple[PodResources, ContainerResources, frozenset[str]]


def starting_names(pods: Iterable[Pod], pod: Pod) -> frozenset[str]:
    """The containers of a pod that can be starting, by its newest state among ``pods``."""
    newest = next((each for each in pods if each.metadata.uid == pod.metadata.uid), None)
    return may_start(newest) if newest is not None else frozenset()


def mig_devices(containers: Iterable[ContainerResources]) -> Iterator[str]:
    """The device IDs of MIG slices that containers hold."""
    for container in containers:
        for devices in container.devices:
            if devices.resource_name.startswith(MIG_RESOURCE_PREFIX):
                yield from (device for device in devices.device_ids if _is_ours(device))


def _is_ours(device_id: str) -> bool:
    try:
        parse_device_id(device_id)
    except ValueError:  # of a plugin that served this resource before, e.g. ``MIG-<uuid>``
        return False
    return True


def holders_of(listing: Sequence[PodResources], resource: str, device_ids: frozenset[str]) -> Iterator[ListedContainer]:
    """Every container that holds one of the devices, with all its devices of the resource."""
    for pod in listing:
        for container in pod.containers:
            of_resource = (each.device_ids for each in container.devices if each.resource_name == resource)
            held = frozenset(device for ids in of_resource for device in ids)
            if held & device_ids:
                yield pod, container, held


def init_requests(pod: Pod, resource: str, count: int, before: str = "") -> dict[str, Mapping[str, int]]:
    """Returns the requests of ordinary init containers that ask for ``count`` of a resource, by container name.

    Args:
        pod: the pod.
        resource: the resource.
        count: number of devices of the resource that they ask for.
        before: only those before the container of this name, which takes over devices from no other.
    """
    found: dict[str, Mapping[str, int]] = {}
    for each in pod.spec.init_containers:
        if each.name == before:
            break
        requests = _slice_requests(each)
        if not is_sidecar(each) and requests.get(resource) == count:
            found[each.name] = requests
    return found


def _slice_requests(container: Container) -> dict[str, int]:
    """Counts the slices that a container asks for, by resource."""
    counts = {
        name: integer_value(text)
        for name, text in container.resources.limits.items()
        if name.startswith(MIG_RESOURCE_PREFIX)
    }
    return {name: count for name, count in counts.items() if count}


#: Seconds until pod-resources lists a pod at the latest, and until the watch shows a listed pod.
_LISTED_WITHIN, _SHOWN_WITHIN = 0.5, 10.0
#: Seconds before pod-resources is asked again, unless something changes sooner.
_LISTING_PAUSE = 0.1
#: Seconds before the API server is asked again for a pod's status, unless something changes sooner.
_STATUS_PAUSE = 1.0


class StartingContainer(msgspec.Struct, frozen=True):
    """A container that starts.

    Attributes:
        pod: its pod.
        listed: its devices, if pod-resources lists it; ``None`` for an ordinary init container.
        requests: the requests of an ordinary init container, by resource.
        of_pod: all devices that pod-resources lists for the pod.
    """

    pod: PodUid
    listed: tuple[str, ...] | None = None
    requests: Mapping[str, int] = {}
    of_pod: tuple[str, ...] = ()


class ContainerFinder:
    """Finds the container that starts, and its devices.

    Args:
        runtime: kubelet, which lists the devices of each container; the pods of this node.
        slices: the node's promises and slices, with the devices that stand for them.
    """

    def __init__(self, runtime: AgentRuntime, slices: SliceTable) -> None:
        self._kubelet = runtime.kubelet
        self._slices = slices
        self._pods = runtime.mirror
        self._changes = runtime.changes.about(Fact.SLICES | Fact.PODS)
        self._clock = runtime.clock
        #: Latest call of each resource, for pods whose init containers started.
        self._calls: dict[PodUid, dict[str, tuple[str, ...]]] = {}

    async def find(self, resource: str, device_ids: Sequence[str]) -> StartingContainer:
        """Returns the container that starts with these devices.

        Raises:
            PluginError: the container cannot be found.
        """
        ids = frozenset(device_ids)
        began = self._clock.monotonic()
        while True:
            version = self._changes.count
            listed = await self._list_holders(resource, ids)
            found = self._first_live_pod(listed)
            if found is not None:
                pod, containers = found
                return await self._find_listed(resource, ids, pod, containers)
            if self._clock.monotonic() - began > (_SHOWN_WITHIN if listed else _LISTED_WITHIN):
                break
            await self._changes.wait(version, _LISTING_PAUSE)
        if listed:
            names = ", ".join(sorted({f"{pod.namespace}/{pod.name}" for pod, _, _ in listed}))
            raise PluginError(f"the API server does not show pod {names} on this node; the start is tried again")
        return await self._find_unlisted(resource, device_ids)

    def devices(self, resource: str, device_ids: tuple[str, ...], container: StartingContainer) -> tuple[str, ...]:
        """All devices of the container that starts, as far as they are known yet."""
        if container.listed is not None:
            return container.listed
        self._calls = {uid: calls for uid, calls in self._calls.items() if self._slices.slices_of(uid)}
        calls = self._calls.setdefault(container.pod, {})
        calls[resource] = device_ids
        others = (
            calls[other]
            for other, count in container.requests.items()
            if other != resource and len(calls.get(other, ())) == count
        )
        return (*device_ids, *(device for each in others for device in each))

    # Listed by pod-resources ------------------------------------------------------------------------------------

    async def _list_holders(self, resource: str, device_ids: frozenset[str]) -> list[ListedContainer]:
        try:
            return list(holders_of(await self._kubelet.pod_resources(), resource, device_ids))
        except ConnectionError as error:
            raise PluginError(f"kubelet's pod-resources API did not answer, so the pod is unknown: {error}") from error

    def _first_live_pod(self, listed: Sequence[ListedContainer]) -> tuple[Pod, list[ListedContainer]] | None:
        """The first listed pod that the watch knows, with its listed containers; the watch may be behind."""
        live = {(pod.metadata.namespace, pod.metadata.name): pod for pod in self._pods.live_pods()}
        for holder, _, _ in listed:
            pod = live.get((holder.namespace, holder.name))
            if pod is not None:
                return pod, [each for each in listed if each[0] is holder]
        return None

    async def _find_listed(
        self, resource: str, ids: frozenset[str], pod: Pod, containers: Sequence[ListedContainer]
    ) -> StartingContainer:
        """Finds the container by rules 1 to 3."""
        uid = PodUid(pod.metadata.uid)
        of_pod = tuple(mig_devices(containers[0][0].containers))
        exact = next((container for _, container, held in containers if held == ids), None)
        inits = init_requests(pod, resource, len(ids), before=exact.name if exact is not None else "")
        own = tuple(mig_devices([exact])) if exact is not None else ()
        same_slices = all(set(own) == ids and requests.keys() == {resource} for requests in inits.values())
        if exact is not None and same_slices:
            return StartingContainer(uid, listed=own, of_pod=of_pod)
        name = await self._find_starting(pod, {*inits, *([exact.name] if exact is not None else [])}, inits)
        if exact is not None and name == exact.name:
            return StartingContainer(uid, listed=own, of_pod=of_pod)
        return StartingContainer(uid, requests=inits.get(name, {resource: len(ids)}), of_pod=of_pod)

    async def _find_starting(self, pod: Pod, names: Collection[str], inits: Mapping[str, Mapping[str, int]]) -> str:
        """Returns the name of the container that starts; the first one if all would get the same slices.

        If the watch shows that the init containers have ended, that suffices; otherwise the API server itself is asked.

        Raises:
            PluginError: the API server does not answer, or its status of the pod stays behind.
        """
        first, *others = inits.values() or ({},)
        if set(names) == set(inits) and all(requests == first for requests in others):
            return next(iter(names), "")
        deadline = self._clock.monotonic() + _SHOWN_WITHIN
        while True:
            version = self._changes.count
            shown = starting_names(self._pods.live_pods(), pod) & frozenset(names)
            if not shown or not shown.isdisjoint(inits):
                shown = starting_names(await self._list_bound_pods(), pod) & frozenset(names)
            if shown:
                return next(iter(shown))
            if self._clock.monotonic() >= deadline:
                raise PluginError(
                    f"pod {pod.metadata.namespace}/{pod.metadata.name}: its status does not show yet which of its "
                    f"containers {', '.join(sorted(names))} starts; the start is tried again"
                )
            await self._changes.wait(version, _STATUS_PAUSE)

    # Not listed -------------------------------------------------------------------------------------------------

    async def _find_unlisted(self, resource: str, device_ids: Sequence[str]) -> StartingContainer:
        """Finds the container by rule 4."""
        pods = await self._list_bound_pods()
        candidates = {PodUid(pod.metadata.uid): pod for pod in pods if init_requests(pod, resource, len(device_ids))}
        uid = await self._find_owner(resource, device_ids, candidates)
        inits = init_requests(candidates[uid], resource, len(device_ids))
        name = await self._find_starting(candidates[uid], inits.keys(), inits)
        return StartingContainer(uid, requests=inits[name])

    async def _find_owner(self, resource: str, device_ids: Sequence[str], candidates: Mapping[PodUid, Pod]) -> PodUid:
        """Returns the pod that gets devices which pod-resources lists for no container.

        Args:
            resource: the resource of the devices.
            device_ids: the devices.
            candidates: the pods with an init container that asks for so many.

        Raises:
            PluginError: no candidate has a promise for them, or one has no promise at all.
        """
        for uid in candidates:
            if device_ids and self._slices.bindings_of(uid).keys() >= set(device_ids):
                return uid
        if not await self._changes.wait_until(lambda: all(map(self._slices.slices_of, candidates)), _SHOWN_WITHIN):
            names = ", ".join(
                f"{pod.metadata.namespace}/{pod.metadata.name}"
                for uid, pod in candidates.items()
                if not self._slices.slices_of(uid)
            )
            raise PluginError(
                f"kubelet's pod-resources API names no pod of this node for {', '.join(device_ids)}; they may be those "
                f"of {names}, which has no promise of a slice: delete it; the start is tried again"
            )
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        free = {
            uid: [p for p in unbound_positions(self._slices, uid) if p.profile == profile]
            for uid in self._slices.promises
            if uid in candidates
        }
        held = {uid: self._slices.bindings_of(uid).keys() & set(device_ids) for uid in free}
        fitting = [uid for uid, positions in free.items() if len(held[uid]) + len(positions) >= len(device_ids)]
        if not fitting:
            raise PluginError(
                f"kubelet's pod-resources API names no pod of this node for {', '.join(device_ids)} and no pod with an "
                f"unclaimed promise of {resource} could hold them; the start is tried again"
            )
        positions = {parse_device_id(device) for device in device_ids}
        if owner := next((uid for uid in fitting if held[uid]), None):
            return owner
        return next((uid for uid in fitting if positions <= set(free[uid])), fitting[0])

    async def _list_bound_pods(self) -> Sequence[Pod]:
        try:
            return await self._pods.list_bound_pods()
        except ConnectionError as error:
            raise PluginError(f"the API server did not say which pods are on this node: {error}") from error


def unbound_positions(slices: SliceTable, pod: PodUid) -> list[SlicePosition]:
    """A pod's slices that a container may get: none of a pod that has borrowed one, and keeps its own."""
    own, bindings = slices.slices_of(pod), slices.bindings_of(pod)
    if any(position not in own and not claim_of(device) for device, position in bindings.items()):
        return []
    return [position for position in own if position not in bindings.values()]
