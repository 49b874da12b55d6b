"""Runs one node's agent while its driver is there; :mod:`tessera.agent.main.lifecycle` starts and ends it.

Start: mirror the node, its pods and its Instaslice object; read the desired configuration; read the cards. Only then
decide which side owns each card, and only then act. From there all parts work side by side and wake each other through
one signal. A part with a failure that it cannot repair ends the process, which Kubernetes starts anew.
"""

import asyncio
import logging

from tessera.agent.base.wake_ups import Fact
from tessera.agent.health.executor import SUSPECT_PROBE_INTERVAL
from tessera.agent.health.policy import APPLICATION_XIDS
from tessera.agent.inventory.gpu_inventory import CardOwner, owner_of
from tessera.agent.main.wiring import Components
from tessera.nvml.errors import NotSupported, NvmlError

_log = logging.getLogger(__name__)

#: Seconds before a kubelet that did not answer at the start is asked again.
_KUBELET_PAUSE = 0.5
#: Seconds of one wait for hardware events; the call is made again at once.
_EVENT_WAIT = 60.0


async def run_components(components: Components) -> None:
    """Runs the components of an agent until cancelled.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed, and only a fresh start can help.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(components.runtime.events.run())
        group.create_task(components.config.run())
        await components.runtime.mirror.start(group)
        await components.config.wait_first_read()
        if not await components.cards.recall():
            group.create_task(_recall_cards_later(components))
        await components.inventory_reader.refresh()
        _assign_recorded_cards(components)
        await _assign_used_cards(components)
        group.create_task(_watch_hardware(components))
        group.create_task(_reread_unreadable_cards(components))
        for each in (
            components.mig_config,
            components.mps,
            components.health,
            components.node_status,
            components.pod_reporter,
            components.memory,
        ):
            group.create_task(each.run(), name=type(each).__name__)
        if components.shows_pages:
            group.create_task(components.exporter.run(), name="Exporter")
            group.create_task(components.loads.run(), name="LoadReader")
        owners = components.runtime.changes.about(Fact.OWNERS)
        while not components.ownership.decided:
            await owners.wait(owners.count)
        group.create_task(components.slices.run())
        group.create_task(components.advertiser.run())


async def _recall_cards_later(components: Components) -> None:
    """Recalls the cards of this boot once its id is known: those of an earlier boot may have been removed."""
    changes = components.runtime.changes.about(Fact.NODE_STATUS)
    count = changes.count
    while not await components.cards.recall():
        await changes.wait(count)
        count = changes.count
    await components.cards.reread_cards(())


def _assign_recorded_cards(components: Components) -> None:
    """Leaves cards with recorded slices on the on-demand side if no file names their owner.

    The state folder was lost, or the record is that of InstaSlice, from which the node was taken over.
    """
    ownership, item = components.ownership, components.runtime.mirror.instaslice()
    if item is None:
        return
    recorded = {each.gpu_uuid: "" for each in item.status.pod_allocation_results.values()}
    requested = (each for request in item.spec.pod_allocation_requests.values() for each in request.slices)
    recorded |= {each.gpu_uuid: each.profile for each in requested if each.gpu_uuid in recorded}
    cards = [each.uuid for each in components.inventory_reader.inventory.gpus if each.uuid in recorded]
    ownership.assume({card: owner_of(recorded[card]) for card in cards if not ownership.is_known(card)})


async def _assign_used_cards(components: Components) -> None:
    """Leaves cards that pods hold on the static side if no file names their owner: their MIG mode must not change."""
    ownership = components.ownership
    gpus = components.inventory_reader.inventory.gpus
    cards = {device: gpu.uuid for gpu in gpus for device in (gpu.uuid, *gpu.mig_attributes)}
    while any(not ownership.is_known(card) for card in cards.values()):
        try:
            used = {cards[device] for device in await components.device_users.read() if device in cards}
        except ConnectionError as error:
            _log.warning("no card is changed before kubelet lists the pods that hold cards: %s", error)
            await components.runtime.clock.sleep(_KUBELET_PAUSE)
            continue
        ownership.assume({card: CardOwner.STATIC for card in used if not ownership.is_known(card)})
        return


async def _reread_unreadable_cards(components: Components) -> None:
    """Lists the cards again while one of them cannot be read or fails probes; NVML has no event for its return."""
    changes = components.runtime.changes.about(Fact.CARDS | Fact.HEALTH)
    while True:
        count = changes.count
        failing = components.health.failing_gpus()
        gpus = components.inventory_reader.inventory.gpus
        unreadable = [gpu.uuid for gpu in gpus if gpu.error or (gpu.uuid in failing and gpu.info.readable)]
        if unreadable:
            await components.runtime.clock.sleep(SUSPECT_PROBE_INTERVAL)
            await components.cards.reread_cards(unreadable)
        else:
            await changes.wait(count)


async def _watch_hardware(components: Components) -> None:
    """Passes hardware events to the health monitor, and has the card of an event read again."""
    while True:
        try:
            event = await components.runtime.hardware.wait_event(_EVENT_WAIT)
            if event is not None:
                components.health.note_hardware_event(event)
                components.exporter.note_hardware_event(event)
                # A failing program may cause hundreds of these a second, and they change nothing on a card.
                if event.xid in APPLICATION_XIDS:
                    continue
                await components.cards.reread_card(event.gpu)
            components.health.note_unheard(await components.runtime.hardware.unheard_cards())
        except NotSupported as error:
            _log.warning("hardware events are not watched, only the next probe detects a lost card: %s", error)
            return
        except NvmlError as error:
            _log.warning("hardware events cannot be watched, next attempt in %.0f s: %s", _EVENT_WAIT, error)
            components.health.note_event_watch_failure(str(error))
            await components.runtime.clock.sleep(_EVENT_WAIT)
