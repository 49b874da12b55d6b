"""Reads from a pod's spec and status, and from pod-resources, which containers kubelet can be starting now. Pure.

Kubelet calls PreStartContainer with devices and names no container. An ordinary init container leaves its devices to
the containers that come after it, so the same devices may belong to either. The order of starts distinguishes them
(``pkg/kubelet/kuberuntime``, ``computePodActions`` and ``computeInitContainerActions``):

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

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tessera.agent.inventory.sliceable_gpus import parse_device_id
from tessera.api.names import MIG_RESOURCE_PREFIX
from tessera.clock import parse_rfc3339
from tessera.kube.quantity import integer_value
from tessera.kube.resources import Condition, Container, ContainerState, Pod
from tessera.kubelet.interfaces import ContainerResources, PodResources

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
