"""Derives from a pod's status the containers that kubelet can be starting now. Pure.

Kubelet calls PreStartContainer with devices and names no container. An ordinary init container leaves its devices to
the containers that come after it, so the same devices may belong to either. The order of starts distinguishes them
(``pkg/kubelet/kuberuntime``, ``computePodActions`` and ``computeInitContainerActions``):

1.  Ordinary init containers run one after the other, each until it has ended well.
2.  A restartable init container (sidecar) starts when all ordinary ones before it have ended well.
3.  An app container starts when all ordinary init containers have ended well.
4.  A container that runs does not start.
5.  In a new sandbox everything begins anew: all ordinary init containers run again. The results of those that ended in
    the former sandbox stay in the status. A status without a sandbox has condition ``PodReadyToStartContainers``
    ``False`` (1.29 and newer). If an init container ended before the one in front of it ended, its result is that of
    a former sandbox.

A status may be behind kubelet, never ahead. If by a status no container can be starting, that status is behind.
"""

from collections.abc import Iterator, Mapping

from tessera.kube.resources import Container, ContainerState, Pod

_NOT_STARTED = ContainerState()


def may_start(pod: Pod) -> frozenset[str]:
    """Names of the containers that can be starting, if the pod's status is up to date."""
    states = {each.name: each.state or _NOT_STARTED for each in pod.status.containers}
    finished = frozenset(_finished(pod, states))
    able: set[str] = set()
    for container in pod.spec.init_containers:
        if not is_sidecar(container) and container.name not in finished:
            return frozenset(able | {container.name}) - _running(states)
        if is_sidecar(container):
            able.add(container.name)
    return frozenset(able | {each.name for each in pod.spec.containers}) - _running(states)


def is_sidecar(container: Container) -> bool:
    """True if an init container is restartable, so that it runs beside later containers."""
    return container.restart_policy == "Always"


def _finished(pod: Pod, states: Mapping[str, ContainerState]) -> Iterator[str]:
    """The ordinary init containers that have ended well in the present sandbox."""
    if any(each.type == "PodReadyToStartContainers" and each.status == "False" for each in pod.status.conditions):
        return
    before = ""
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            continue
        ended = states.get(container.name, _NOT_STARTED).terminated
        if ended is None or ended.exit_code != 0 or (ended.finished_at or "") < before:
            return
        before = ended.finished_at or before
        yield container.name


def _running(states: Mapping[str, ContainerState]) -> frozenset[str]:
    return frozenset(name for name, state in states.items() if state.running is not None)
