"""Takes Tessera off one node: releases the cards, removes the agent's files, and answers on the Node.

The files go last, so an agent that was killed before begins the removal again. Folders that are mounted stay, empty;
kubelet made them, not the agent. The answer has the field manager of labels and offers. So the write that gives it also
removes these, since server-side apply removes fields that a manager no longer names. While the agent waits, the label
of the pod of MPS daemons stays.

``tessera uninstall`` asks for it by an annotation of the Node. :class:`CardRelease` takes Tessera off the cards.

Kubelet's lists of devices are empty before (:mod:`tessera.agent.lifecycle`), so no pod gets a device any more.
Then:

1. ResourceClaims are given back when their pods end: kubelet asks this agent, and keeps the pods until it has answered.
   Until then the answer is "waiting", with the claims.
2. MPS daemons end, but only when no pod is their client: the computations of a client end with its daemon. Until then
   the answer is "waiting", with the pods.
3. Unused GPU instances that Tessera made are destroyed, unless the request keeps them. Then the part of the journal
   about running pods stays too, in a file of its own: a later agent knows by it whose slices these are.

All read the node anew and need no memory of a former process, so an agent that was killed in between begins again.

Tessera destroys what it made and nobody uses: a slice whose pod has ended, an instance of a layout without a pod. It
never destroys an instance of a running pod, one with processes, or one that somebody else made. MIG mode stays as it
is: nobody recorded what it was before.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.base.node_objects import NodeSource, has_ended
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.driver.gate import DriverGate, ReadyConditionWriter
from tessera.agent.inventory.device_state import DeviceUser, match_device_users
from tessera.agent.inventory.sliceable_gpus import parse_device_id
from tessera.agent.mig_config.executor import LayoutJournal
from tessera.agent.mps.state import ControlFailed
from tessera.agent.run import NodeTurn
from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.wiring import Components
from tessera.api.names import CDI_KIND, MPS_HOST_LABEL, PodUid
from tessera.api.nodes.node_marks import (
    REMOVAL_ANNOTATION,
    REMOVED_ANNOTATION,
    RemovalAnswer,
    RemovalRequest,
    RemovalState,
    encode_answer,
    make_answer,
)
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES
from tessera.kube.retries import Backoff
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.errors import NvmlError, NvmlNotFound
from tessera.nvml.interface import GpuInfo, GpuInstance


class InstanceUse(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides about one instance.

    Attributes:
        instance: the instance.
        made: true if Tessera made it, on demand or for a layout.
        pods: ``namespace/name`` of the pods that have it.
        processes: PIDs on it.
    """

    instance: GpuInstance
    made: bool
    pods: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()


class CardPlan(msgspec.Struct, frozen=True):
    """The instances of one card to destroy, and notes about those of ours that stay."""

    destroy: tuple[GpuInstance, ...]
    notes: tuple[str, ...]


def plan_card(gpu: str, index: int, uses: Collection[InstanceUse], *, keep: bool) -> CardPlan:
    """Decides about one card.

    Args:
        gpu: the card's UUID.
        index: its number, for messages.
        uses: its instances.
        keep: true if unused instances stay too.
    """
    destroy: list[GpuInstance] = []
    notes: list[str] = []
    for each in uses:
        if not each.made:
            continue
        users = (*(f"pod {pod}" for pod in each.pods), *(f"process {pid}" for pid in each.processes))
        if not users and not keep:
            destroy.append(each.instance)
            continue
        reason = f"used by {', '.join(users[:_USERS])}" if users else "kept as requested"
        notes.append(
            f"{each.instance.profile} at start {each.instance.start} of GPU {index} ({gpu}) stays, {reason};"
            f" {'once it is unused' if users else 'to remove it'}: {destroy_command(index, each.instance.gi_id)}"
        )
    return CardPlan(tuple(destroy), tuple(notes))


#: Users that a note names.
_USERS = 4


def destroy_command(index: int, gi_id: int) -> str:
    """The command that removes an instance by hand."""
    return f"nvidia-smi mig -i {index} -gi {gi_id} -dci && nvidia-smi mig -i {index} -gi {gi_id} -dgi"


def pods_of_instance(
    gpu: str,
    instance: GpuInstance,
    *,
    owners: Mapping[tuple[str, int], PodUid],
    users: Mapping[str, Collection[str]],
    names: Mapping[PodUid, str],
) -> tuple[str, ...]:
    """The running pods that have an instance.

    Args:
        gpu: UUID of its card.
        instance: the instance.
        owners: by card and start, the pod for which a slice was made.
        users: by MIG device, the pods that hold it.
        names: ``namespace/name`` of the pods that run on the node.
    """
    owner = owners.get((gpu, instance.start))
    found = {names[owner]} if owner is not None and owner in names else set()
    for compute in instance.compute_instances:
        found |= set(users.get(compute.mig_uuid, ()))
    return tuple(sorted(found))


#: Seconds between two looks at the pods that are clients of MPS daemons: kubelet announces no change of its list.
CLIENT_RECHECK = 5.0
#: Pods that a note names.
_SHOWN = 5


class CardRelease:
    """Releases the cards of one node.

    Args:
        components: an agent's components, none of them running.
        kubelet: the node's kubelet.
    """

    def __init__(self, components: Components, kubelet: Kubelet) -> None:
        self._components = components
        self._hardware = components.runtime.hardware
        self._kubelet = kubelet

    async def take_back_claims(self, wait: Callable[[Sequence[str]], Awaitable[bool]]) -> bool:
        """Serves kubelet until it has given back all ResourceClaims.

        Args:
            wait: is called with notes about the claims while there are any; returns false to give up.

        Returns:
            False if it was given up.
        """
        giver = self._components.slices.giver
        if not giver.held():
            return True
        serving = asyncio.create_task(giver.take_back())
        try:
            while held := giver.held():
                if not await wait([f"waits for the pods of ResourceClaims to end: {_names(set(held))}"]):
                    return False
            return True
        finally:
            serving.cancel()
            await asyncio.wait({serving})

    async def end_daemons(self, wait: Callable[[Sequence[str]], Awaitable[bool]]) -> bool:
        """Ends the MPS daemons once no pod is a client, and gives their cards back.

        Args:
            wait: is called with notes about the clients while there are any; returns false to give up.

        Returns:
            False if it was given up.
        """
        mps = self._components.mps
        while mps.recorded_resources:
            try:
                if not (clients := await self._clients()):
                    await mps.end_all()
                    await mps.release_cards()
                    return True
                notes = [f"waits for clients of MPS daemons to end: {_names(clients)}"]
            except (ConnectionError, ControlFailed, OSError, NvmlError) as error:
                notes = [f"MPS daemons cannot be ended yet: {error}"]
            if not await wait(notes):
                return False
        return True

    async def _clients(self) -> set[str]:
        """The pods that have shares of an MPS daemon; raises ConnectionError."""
        served = self._components.mps.recorded_resources
        users = await self._users()
        return {each.pod_name for found in users.values() for each in found if each.resource in served}

    async def _users(self) -> Mapping[str, tuple[DeviceUser, ...]]:
        bound = await self._components.runtime.mirror.list_bound_pods()
        return match_device_users(await self._kubelet.pod_resources(), bound)

    async def free(self, *, keep: bool) -> list[str]:
        """Destroys the unused instances that Tessera made; returns notes about all that stays.

        Args:
            keep: true if unused instances stay too.

        Raises:
            ConnectionError: kubelet or API server did not answer, so the users of instances are not known.
        """
        try:
            cards = await self._hardware.devices()
        except NvmlError as error:
            return [f"the cards cannot be listed, so instances on them stay: {error}"]
        notes = await self._keep_journal() if keep else []
        for card in cards:
            if card.error:
                notes.append(f"GPU {card.index} ({card.uuid}): {card.problem}; its instances stay")
            elif card.mig_enabled and card.readable:
                try:
                    notes += await self._free_card(card, keep=keep)
                except NvmlError as error:
                    notes.append(f"GPU {card.index} ({card.uuid}) cannot be read, its instances stay: {error}")
        return notes

    async def _keep_journal(self) -> list[str]:
        """Saves the owners that still run; one that has ended proves nothing later (docs/decisions/removal.md)."""
        options = self._components.runtime.options
        journal = SliceJournalFile(options.journal_file).load()
        running = {
            PodUid(pod.metadata.uid)
            for pod in await self._components.runtime.mirror.list_bound_pods()
            if not has_ended(pod)
        }
        kept = SliceJournal(
            owners={position: pod for position, pod in journal.owners.items() if pod in running},
            bindings={pod: bound for pod, bound in journal.bindings.items() if pod in running},
        )
        if not kept.owners:  # an agent that was killed after the journal went has saved them before
            return []
        try:
            SliceJournalFile(options.kept_file).save(kept)
        except OSError as error:
            return [f"{options.kept_file} cannot be written, so a later installation does not know its slices: {error}"]
        return [f"{options.kept_file} stays: by it a later installation knows the slices of pods that run"]

    async def _free_card(self, card: GpuInfo, *, keep: bool) -> list[str]:
        plan = plan_card(card.uuid, card.index, await self._uses(card), keep=keep)
        notes = list(plan.notes)
        for each in plan.destroy:
            try:
                await self._destroy(card, each)
            except NvmlError as error:
                command = destroy_command(card.index, each.gi_id)
                notes.append(f"{each.profile} at start {each.start} of GPU {card.index} stays: {error}; {command}")
        if not await self._hardware.instances(card.uuid):
            notes.append(
                f"GPU {card.index} ({card.uuid}) is empty and stays in MIG mode: nvidia-smi -i {card.index} -mig 0"
            )
        return notes

    async def _destroy(self, card: GpuInfo, instance: GpuInstance) -> None:
        _log.info("destroying %s at start %d of card %s", instance.profile, instance.start, card.uuid)
        for compute in instance.compute_instances:
            try:
                await self._hardware.destroy_compute_instance(card.uuid, instance.gi_id, compute.ci_id)
            except NvmlNotFound:
                continue
        await self._hardware.destroy_gpu_instance(card.uuid, instance.gi_id)

    async def _uses(self, card: GpuInfo) -> list[InstanceUse]:
        options = self._components.runtime.options
        positions = SliceJournalFile(options.journal_file).load().owners.items()
        slices = {parse_device_id(text): pod for text, pod in positions}
        owners = {(position.gpu, position.start): pod for position, pod in slices.items()}
        layout = LayoutJournal(options.state_dir / "layout.json").record.managed.get(card.uuid, ())
        made = {each.start for each in layout} | {start for gpu, start in owners if gpu == card.uuid}
        users = {device: {each.pod_name for each in found} for device, found in (await self._users()).items()}
        names = {
            PodUid(pod.metadata.uid): f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in await self._components.runtime.mirror.list_bound_pods()
        }
        instances = await self._hardware.instances(card.uuid)
        processes = await self._hardware.processes(card.uuid)
        return [
            InstanceUse(
                instance=each,
                made=each.start in made,
                pods=pods_of_instance(card.uuid, each, owners=owners, users=users, names=names),
                processes=tuple(process.pid for process in processes if process.gi_id == each.gi_id),
            )
            for each in instances
        ]


def _names(found: set[str]) -> str:
    listed = sorted(found)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


_log = logging.getLogger(__name__)


class AnswerWriter:
    """Writes answers.

    Args:
        environment: the API server, whose field manager owns the Node's labels and offers.
        node: the Node as last seen.
    """

    def __init__(self, environment: AgentEnvironment, node: NodeSource) -> None:
        self._client = environment.client
        self._node = node
        self._clock = environment.clock
        self._backoff = Backoff(environment.rng)

    async def write(self, answer: RemovalAnswer) -> None:
        """Writes an answer; returns when the API server has it, or when there is no Node."""
        while (node := self._node.node()) is not None:
            metadata: dict[str, Any] = {
                "uid": node.metadata.uid,
                "annotations": {REMOVED_ANNOTATION: encode_answer(answer)},
            }
            if answer.state is RemovalState.WAITING and MPS_HOST_LABEL in node.metadata.labels:
                metadata["labels"] = {MPS_HOST_LABEL: node.metadata.labels[MPS_HOST_LABEL]}
            body = {"metadata": metadata}
            try:
                await self._client.apply(NODES, self._node.node_name, body)
            except (ApiError, ConnectionError, TimeoutError) as error:
                pause = self._backoff.next()
                _log.warning("the answer to a removal is not written, next attempt in %.1f s: %s", pause, error)
                await self._clock.sleep(pause)
            else:
                self._backoff.reset()
                return


#: Beginning of the names of all CDI files that the agent writes, finished or not.
_CDI = CDI_KIND.replace("/", "-")


class NodeRemoval:
    """The agent's part of a removal.

    Args:
        options: the agent's folders.
        gate: knows whether a removal is requested.
        answers: writes answers on the Node.
        condition: says on the Node whether the driver is ready; ends with a removal.
        turn: the turn of this agent; a predecessor ends before cards are released.
        changes: announces changes of the Node.
    """

    def __init__(
        self,
        options: AgentOptions,
        gate: DriverGate,
        *,
        answers: AnswerWriter,
        condition: ReadyConditionWriter,
        turn: NodeTurn,
        changes: ChangeNotifier,
    ) -> None:
        self._options = options
        self._gate = gate
        self._answers = answers
        self._condition = condition
        self._turn = turn
        self._changes = changes.about(Fact.DRIVER)
        #: The last answer to a request for removal that the agent cannot fulfil yet.
        self._answer: RemovalAnswer | None = None

    async def release_cards(self, components: Components, kubelet: Kubelet) -> list[str] | None:
        """Releases the cards because Tessera leaves the node.

        Args:
            components: an agent's components, none of them running.
            kubelet: the node's kubelet.

        Returns:
            Notes about what stays on the cards; ``None`` if the request was withdrawn.
        """
        self._condition.stop()
        await self._turn.outlive()
        release = CardRelease(components, kubelet)
        try:
            if not await release.take_back_claims(self._wait_to_leave):
                return None
            if not await release.end_daemons(self._wait_to_leave):
                return None
            while (request := self._gate.removal) is not None:
                try:
                    return await release.free(keep=request is RemovalRequest.KEEP)
                except ConnectionError as error:
                    if not await self._wait_to_leave([f"the users of the cards are not known: {error}"]):
                        return None
            return None
        finally:
            components.detach()

    async def _wait_to_leave(self, notes: Sequence[str]) -> bool:
        """Publishes the obstacles and waits; returns false if the request was withdrawn meanwhile."""
        answer = make_answer(RemovalState.WAITING, notes)
        if answer != self._answer:
            self._answer = answer
            await self._answers.write(answer)
        await self._changes.wait_until(lambda: self._gate.removal is None, CLIENT_RECHECK)
        return self._gate.removal is not None

    async def stay_away(self, notes: list[str], *, real: bool) -> None:
        """Removes the agent's files, answers, and waits until the request is withdrawn.

        Args:
            notes: what stays on the cards.
            real: true if the cards are real ones; only then MPS daemons had files.
        """
        self._condition.stop()
        mps = (self._options.mps_mount or self._options.mps_root) if real else None
        keep = (self._options.kept_file,) if self._gate.removal is not RemovalRequest.DESTROY else ()
        left = remove_files(state=self._options.state_dir, cdi=self._options.cdi_dir, mps=mps, keep=keep)
        self._answer = None
        await self._answers.write(make_answer(RemovalState.DONE, [*notes, *left]))
        _log.info("Tessera has left this node; it returns when the annotation %s is removed", REMOVAL_ANNOTATION)
        while self._gate.removal is not None:
            await self._changes.wait(self._changes.count)


def remove_files(*, state: Path, cdi: Path, mps: Path | None, keep: Collection[Path] = ()) -> list[str]:
    """Removes the agent's state, its CDI files, and the pipes and logs of MPS daemons that have ended.

    Args:
        state: folder of the state files; all of it is the agent's.
        cdi: folder of CDI files, which the agent shares with others.
        mps: folder of the MPS daemons, all of which is the agent's; ``None`` to leave it.
        keep: state files that stay.

    Returns:
        The files that could not be removed, for people.
    """
    return [
        *_remove(each for each in _files(state, "*") if each not in keep),
        *_remove(path for pattern in (f"{_CDI}*", f".{_CDI}*") for path in _files(cdi, pattern)),
        *(_empty(mps) if mps is not None else ()),
    ]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _empty(folder: Path) -> list[str]:
    return _remove(iter(_files(folder, "*")))


def _remove(paths: Iterator[Path]) -> list[str]:
    left: list[str] = []
    for path in paths:
        try:
            if path.is_mount():
                left += _empty(path)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{path} stays, remove it by hand: {error.strerror or error}")
    return left
