"""Takes Tessera off the cards of one node, when ``tessera uninstall`` asks for it by an annotation of the Node.

Kubelet's lists of devices are empty before (:mod:`tessera.agent.main.lifecycle`), so no pod gets a device any more.
Then:

1. MPS daemons end, but only when no pod is their client: the computations of a client end with its daemon. Until then
   the answer is "waiting", with the pods.
2. Unused GPU instances that Tessera made are destroyed, unless the request keeps them. Then the part of the journal
   about running pods stays too, in a file of its own: a later agent knows by it whose slices these are.

Both read the node anew and need no memory of a former process, so an agent that was killed in between begins again.

Tessera destroys what it made and nobody uses: a slice whose pod has ended, an instance of a layout without a pod. It
never destroys an instance of a running pod, one with processes, or one that somebody else made. MIG mode stays as it
is: nobody recorded what it was before.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from tessera.agent.base.node_objects import has_ended
from tessera.agent.inventory.device_state import DeviceUser, match_device_users
from tessera.agent.inventory.sliceable_gpus import parse_device_id
from tessera.agent.main.wiring import Components
from tessera.agent.mig_config.executor import LayoutJournal
from tessera.agent.mps.interfaces import ControlFailed
from tessera.agent.slices.events import SliceJournal
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.api.names import PodUid
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.errors import NvmlError, NvmlNotFound
from tessera.nvml.interface import GpuInfo, GpuInstance

_log = logging.getLogger(__name__)


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


def _names(pods: set[str]) -> str:
    listed = sorted(pods)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
