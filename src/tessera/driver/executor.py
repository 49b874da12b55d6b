"""Carries out the planner's instructions: one request each, except for objects that need another object first.

One write per object is in flight. The next one follows once a watch has shown the last, since the planner decided from
an older view until then. A failed write is repeated after a pause, if the planner still asks for it.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping

import msgspec

from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DRIVER_SET_LABEL, TOOLKIT_APP
from tessera.driver.driver_sets import NAMESPACE, SPEC_ANNOTATION
from tessera.driver.manifests.configs import (
    CLUSTER_PROXY,
    NO_PROXY,
    DriverConfigError,
    Proxy,
    needed_config_maps,
    read_proxy,
    trusted_ca,
)
from tessera.driver.manifests.driver import driver_daemonset
from tessera.driver.manifests.host import validation_pod
from tessera.driver.manifests.toolkit import runtime_class, toolkit_daemonset
from tessera.driver.node_status import encode_status
from tessera.driver.planning.interface import (
    ApplyToolkit,
    CreateSet,
    CreateValidationPod,
    DeletePod,
    DeleteSet,
    DeleteToolkit,
    Instruction,
    LabelNode,
    WriteCondition,
    WritePolicyStatus,
    WriteStatus,
    instruction_key,
)
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.policy_objects import OWNER_LABEL
from tessera.kube.errors import AlreadyExists, Conflict, Forbidden, NotFound
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, DAEMONSETS, NODES, OPENSHIFT_PROXIES, PODS, RUNTIME_CLASSES
from tessera.kube.retries import FREE, Executor, Hold, RequestError, until_observed

_log = logging.getLogger(__name__)

#: Seconds within which a watch shows a write; a write that is not shown by then changed nothing.
SEEN_SECONDS = 2.0
#: Seconds after which an instruction that needs Tessera's own image is tried again.
_IMAGE_UNKNOWN_SECONDS = 30.0
#: Most writes at the same time: each has a connection of its own meanwhile, of the 200 that all parts of the controller
#: share. Those that hang leave enough to all others (:mod:`tessera.controller.execution` has the most, 128 in all).
_AT_ONCE = 32
#: Field manager of the condition and of the toolkit's DaemonSet; it owns every field that it applies.
CONDITIONS_MANAGER = "tessera-drivers"


class DriverExecutor:
    """Carries out the planner's instructions; see :mod:`tessera.kube.retries` for writes in flight and pauses.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        wake: called after an answer or the end of a pause.
        image: Tessera's own image; empty while it is not known.
        toolkit_spec: digest of the spec of the toolkit's DaemonSet, from its annotation; empty if there is none.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        wake: Callable[[], None],
        image: Callable[[], str],
        toolkit_spec: Callable[[], str],
    ) -> None:
        #: Why a set's DaemonSet cannot be created, by the set's id. A successful creation removes the entry.
        self.problems: dict[str, str] = {}
        self._client = runtime.client
        self._condition_writer = runtime.client.with_field_manager(CONDITIONS_MANAGER)
        self._may_act = runtime.may_act
        self._image = image
        self._toolkit_spec = toolkit_spec
        self._executor: Executor[Instruction] = Executor(self, wake=wake, rng=runtime.rng)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def start(self, instruction: Instruction, group: asyncio.TaskGroup) -> None:
        """Starts an instruction, unless its object is busy or another write of the same node has to come first."""
        key = instruction_key(instruction)
        if self._executor.is_busy(key) or self._waits_for_other_write(instruction):
            return
        if isinstance(instruction, CreateValidationPod | ApplyToolkit) and not self._image():
            _log.info("Tessera's own image is not known: no pod of its controller is seen")
            self._executor.postpone(key, _IMAGE_UNKNOWN_SECONDS)
            return
        if isinstance(instruction, ApplyToolkit) and self._toolkit_is_current(instruction):
            return
        self._executor.start(key, instruction, group)

    def observe_change(self, *keys: str) -> None:
        """Allows new writes of these objects, since a watch showed a change."""
        self._executor.objects_changed(keys)

    def stop(self) -> None:
        """Forgets all pauses."""
        self._executor.stop()

    def _waits_for_other_write(self, instruction: Instruction) -> bool:
        """True if another write of the same node has to come first.

        A label patch holds only for the node's resourceVersion that the planner saw. So the label waits until the
        node's status writes are seen, and no status is written while the label patch is in flight.
        """
        match instruction:
            case LabelNode(node=node):
                status = (f"status/{node}", f"condition/{node}")
                return any(self._executor.is_in_flight(key) or self._executor.awaits_observation(key) for key in status)
            case WriteStatus(node=node) | WriteCondition(node=node):
                return self._executor.is_in_flight(f"label/{node}")
        return False

    # Called by the executor

    async def perform(self, instruction: Instruction) -> Hold:
        """Sends an instruction's writes; its key is held until a watch shows the change."""
        try:
            async with self._slots:
                if self._may_act():
                    await self._send(instruction)
        except DriverConfigError as error:
            self._note_problem(instruction, str(error))
            return self._executor.back_off(instruction_key(instruction))
        if isinstance(instruction, CreateSet):
            self.problems.pop(instruction.set.id, None)
        return until_observed(SEEN_SECONDS)

    def handle_failure(self, instruction: Instruction, error: RequestError) -> Hold:
        """Backs off, unless the object to delete is gone already."""
        key = instruction_key(instruction)
        if isinstance(error, NotFound):
            if isinstance(instruction, DeleteSet | DeletePod | DeleteToolkit):
                return FREE
            _log.info("%s: %s", key, error)
        elif not isinstance(error, Conflict):  # after a conflict the watch will show a newer state
            _log.warning("%s: %s", key, error)
            self._note_problem(instruction, str(error))
        return self._executor.back_off(key)

    def handle_release(self, instruction: Instruction, hold: Hold) -> None:
        """Does nothing: the planner decides again."""

    def _note_problem(self, instruction: Instruction, text: str) -> None:
        if isinstance(instruction, CreateSet):
            self.problems[instruction.set.id] = f"DaemonSet {instruction.set.name} cannot be made: {text}"

    async def _send(self, instruction: Instruction) -> None:
        match instruction:
            case CreateSet():
                await self._create_set(instruction)
            case DeleteSet(name=name, uid=uid):
                await self._client.delete(DAEMONSETS, name, NAMESPACE, uid=uid, propagation="Background")
            case LabelNode(node=node, uid=uid, version=version, set=set_, owner=owner):
                labels = {DRIVER_SET_LABEL: set_ or None, **({} if owner is None else {OWNER_LABEL: owner or None})}
                patch = {"metadata": {"labels": labels}}
                await self._client.merge_patch(NODES, node, patch, uid=uid, resource_version=version)
            case WriteStatus(node=node, uid=uid, status=status):
                text = None if status is None else encode_status(status)
                noted = {"metadata": {"annotations": {DRIVER_ANNOTATION: text}}}
                await self._client.merge_patch(NODES, node, noted, uid=uid)
            case WriteCondition(node=node, uid=uid, condition=condition):
                # Applied under a manager of its own: if the condition is left out, the server removes it.
                conditions = [] if condition is None else [condition]
                body = {"metadata": {"uid": uid}, "status": {"conditions": conditions}}
                await self._condition_writer.apply(NODES.as_dicts(), node, body, subresource="status")
            case CreateValidationPod(node=node, uid=uid, set=set_, nri_plugin=nri):
                pod = validation_pod(self._image(), node=node, node_uid=uid, driver_set=set_, nri_plugin=nri)
                await self._create_pod(pod)
            case DeletePod(name=name, uid=uid):
                await self._client.delete(PODS, name, NAMESPACE, uid=uid, grace_seconds=0)
            case ApplyToolkit():
                await self._apply_toolkit(instruction)
            case DeleteToolkit():
                await self._client.delete(DAEMONSETS, TOOLKIT_APP, NAMESPACE, propagation="Background")
            case WritePolicyStatus():
                await self._write_policy_status(instruction)

    async def _create_pod(self, pod: dict[str, object]) -> None:
        try:
            await self._client.create(PODS.as_dicts(), pod, NAMESPACE)
        except AlreadyExists:
            return
        except Forbidden:
            # Without its RuntimeClass the pod cannot run; it is missing if the hosts have their own toolkit.
            if not await self._create_runtime_class():
                raise
            await self._client.create(PODS.as_dicts(), pod, NAMESPACE)

    async def _create_runtime_class(self) -> bool:
        """Creates the RuntimeClass; returns True if it did not exist."""
        try:
            await self._client.create(RUNTIME_CLASSES.as_dicts(), runtime_class())
        except AlreadyExists:
            return False
        return True

    async def _create_set(self, instruction: CreateSet) -> None:
        made = instruction.set
        keys, proxy = await self._config_keys(instruction), await self._proxy(instruction)
        body = driver_daemonset(instruction.policy, made, keys, proxy)
        try:
            await self._client.create(DAEMONSETS.as_dicts(), body, NAMESPACE)
        except AlreadyExists:
            # A DaemonSet of that name without the set's annotation: somebody removed the annotation.
            metadata = {key: body["metadata"][key] for key in ("labels", "annotations")}
            await self._client.merge_patch(DAEMONSETS, made.name, {"metadata": metadata}, NAMESPACE)

    async def _proxy(self, instruction: CreateSet) -> Proxy:
        """OpenShift's proxy for RHCOS nodes; no proxy for others."""
        if not instruction.set.pool.ostree:
            return NO_PROXY
        try:
            found = await self._client.get(OPENSHIFT_PROXIES, CLUSTER_PROXY)
        except NotFound:
            return NO_PROXY
        proxy = read_proxy(found)
        if proxy.trusted_ca:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(CONFIGMAPS.as_dicts(), trusted_ca(), NAMESPACE)
        return proxy

    async def _config_keys(self, instruction: CreateSet) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name in dict.fromkeys(needed_config_maps(instruction.policy, instruction.set)):
            try:
                config = await self._client.get(CONFIGMAPS, name, NAMESPACE)
            except NotFound:
                continue
            found[name] = (*config.data, *config.binary_data)
        return found

    # The toolkit

    def _toolkit_body(self, instruction: ApplyToolkit) -> dict[str, object]:
        body = toolkit_daemonset(instruction.policy, self._image(), instruction.runtime)
        body["metadata"]["annotations"] = {SPEC_ANNOTATION: _digest(body["spec"])}
        return body

    def _toolkit_is_current(self, instruction: ApplyToolkit) -> bool:
        return self._toolkit_spec() == _digest(
            toolkit_daemonset(instruction.policy, self._image(), instruction.runtime)["spec"]
        )

    async def _apply_toolkit(self, instruction: ApplyToolkit) -> None:
        await self._create_runtime_class()
        if self._may_act():
            await self._condition_writer.apply(
                DAEMONSETS.as_dicts(), TOOLKIT_APP, self._toolkit_body(instruction), NAMESPACE
            )

    # Administrators' objects

    async def _write_policy_status(self, instruction: WritePolicyStatus) -> None:
        await self._client.merge_patch(
            CLUSTER_POLICIES if instruction.kind == CLUSTER_POLICIES.kind else NVIDIA_DRIVERS,
            instruction.name,
            instruction.patch,
            uid=instruction.uid,
            subresource="status",
        )


def _digest(spec: object) -> str:
    return hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()[:16]
