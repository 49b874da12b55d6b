"""Carries out the rollout's instructions: one request each. A crash may happen before or after the request is sent.

The executor does not retry. Each request ends with an
:class:`~.instructions.InstructionOutcome`, and the next decision starts from the cluster's new state.

Pull pods bring a driver's image to a node while the old driver serves. A pull pod requests no resources, so it fits on
a full node. It names its node, so a cordon does not keep it off. It ends at once, after kubelet has pulled the image.
It lacks the label that the set's DaemonSet selects, so the DaemonSet does not adopt it. Its name follows from node and
set, so a controller that restarts finds the existing pod.
"""

import hashlib
import logging
from collections.abc import Collection
from typing import Any

from tessera.driver.driver_sets import APP_LABEL
from tessera.driver.rollout.candidates import (
    FAILURES_CONFIG_MAP,
    SetFailures,
    add_failure,
    encode_failures,
    read_failures,
)
from tessera.driver.rollout.instructions import (
    DeletePull,
    EvictPod,
    ForgetFailures,
    Instruction,
    InstructionOutcome,
    PatchNode,
    PullImage,
    RecordFailure,
)
from tessera.driver.rollout.node_view import PULL_APP, PULL_SET_LABEL, live_pods
from tessera.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, TooManyRequests
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, NODES, PODS


def pull_pod(pull: PullImage) -> dict[str, Any]:
    """The manifest of a pull pod, without its namespace."""
    return {
        "metadata": {
            "name": pull_name(pull.node, pull.set),
            "labels": {APP_LABEL: PULL_APP, PULL_SET_LABEL: pull.set},
            # The pod is deleted with its node, also in clusters that do not collect pods of deleted nodes.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": pull.node, "uid": pull.node_uid}],
        },
        "spec": {
            "nodeName": pull.node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": name} for name in pull.secrets],
            "containers": [
                {
                    "name": "pull",
                    "image": pull.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["true"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def pull_name(node: str, set_: str) -> str:
    """The pod's name: at most 63 characters, also for long names of nodes."""
    return f"tessera-pull-{set_[:20]}-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


_log = logging.getLogger(__name__)


class RolloutExecutor:
    """Carries out instructions.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        namespace: Tessera's namespace.
        events: writes events about nodes.

    Attributes:
        failures: the recorded failures; call :meth:`load_failures` before reading them.
        refusals: why the latest evictions were refused, by the pod's UID.
    """

    def __init__(self, runtime: KubeRuntime, *, namespace: str, events: EventRecorder) -> None:
        self.failures: dict[str, SetFailures] = {}
        self.refusals: dict[str, str] = {}
        self._client = runtime.client
        self._namespace = namespace
        self._events = events
        self._may_act = runtime.may_act

    async def load_failures(self) -> None:
        """Reads the recorded failures.

        Raises:
            ApiError: the server refused.
            ConnectionError: the server gave no answer.
            TimeoutError: the server did not answer in time.
        """
        try:
            found = await self._client.get(CONFIGMAPS, FAILURES_CONFIG_MAP, self._namespace)
        except NotFound:
            self.failures = {}
        else:
            self.failures = read_failures(found.data)

    def forget_refusals(self, alive: Collection[str]) -> None:
        """Forgets the refusals of all other pods."""
        self.refusals = {uid: text for uid, text in self.refusals.items() if uid in alive}

    async def execute(self, instruction: Instruction) -> InstructionOutcome:
        """Carries out one instruction; never raises for an answer of the server, or for a missing one."""
        if not self._may_act():
            return InstructionOutcome.REFUSED
        try:
            return await self._dispatch(instruction)
        except (NotFound, Conflict):
            return InstructionOutcome.OUTDATED
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("rollout: %s: %s", instruction, error)
            return InstructionOutcome.REFUSED

    async def _dispatch(self, instruction: Instruction) -> InstructionOutcome:
        match instruction:
            case PatchNode():
                return await self._patch(instruction)
            case EvictPod():
                return await self._evict(instruction)
            case PullImage():
                return await self._pull(instruction)
            case DeletePull(namespace=namespace, name=name, uid=uid):
                await self._client.delete(PODS, name, namespace, uid=uid, grace_seconds=0)
            case RecordFailure():
                await self._save_failures(
                    add_failure(
                        self.failures,
                        driver_set=instruction.set,
                        policy=instruction.policy,
                        node=instruction.node,
                        cause=instruction.cause,
                        at=instruction.at,
                    )
                )
            case ForgetFailures(set=set_):
                await self._save_failures({key: each for key, each in self.failures.items() if key != set_})
        return InstructionOutcome.DONE

    async def _patch(self, patch: PatchNode) -> InstructionOutcome:
        if patch.without_gpu_pods:
            # The pod watch may be behind the node watch: a pod bound before the cordon may not be in it yet.
            bound = await self._client.list(PODS, field_selector=f"spec.nodeName={patch.node}")
            if any(pod.gpu and not pod.stays for pod in live_pods(bound.items)):
                return InstructionOutcome.REFUSED
        node = await self._client.merge_patch(
            NODES, patch.node, patch.body(), uid=patch.uid, resource_version=patch.version
        )
        if node.metadata.resource_version == patch.version:
            return InstructionOutcome.REFUSED  # the server refused just now: do not repeat at once
        if patch.reason:
            self._events.record(
                make_reference(NODES, patch.node, uid=patch.uid),
                patch.reason,
                patch.note,
                type="Warning" if patch.warning else "Normal",
                action="Upgrading",
            )
        return InstructionOutcome.DONE

    async def _evict(self, eviction: EvictPod) -> InstructionOutcome:
        try:
            await self._client.evict(eviction.name, eviction.namespace, uid=eviction.uid)
        except TooManyRequests as error:
            self.refusals[eviction.uid] = " ".join([error.message, *(cause.message for cause in error.causes)])
            return InstructionOutcome.REFUSED
        except (NotFound, Conflict):
            raise
        except ApiError as error:
            self.refusals[eviction.uid] = error.message
            raise
        self.refusals.pop(eviction.uid, None)
        return InstructionOutcome.DONE

    async def _pull(self, instruction: PullImage) -> InstructionOutcome:
        try:
            await self._client.create(PODS.as_dicts(), pull_pod(instruction), self._namespace)
        except AlreadyExists:
            return InstructionOutcome.REFUSED  # Tessera's own pod, not seen yet, or an earlier one about to go
        return InstructionOutcome.DONE

    async def _save_failures(self, failures: dict[str, SetFailures]) -> None:
        gone = dict.fromkeys(self.failures.keys() - failures.keys())
        data = {"data": {**encode_failures(failures), **gone}}
        try:
            await self._client.merge_patch(CONFIGMAPS, FAILURES_CONFIG_MAP, data, self._namespace)
        except NotFound:
            item = {"metadata": {"name": FAILURES_CONFIG_MAP}, "data": encode_failures(failures)}
            await self._client.create(CONFIGMAPS, item, self._namespace)
        self.failures = failures
