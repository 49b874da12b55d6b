"""Runs one node's agent while its driver is there; :mod:`tessera.agent.main.lifecycle` starts and ends it.

Start: mirror the node, its pods and its Instaslice object; read the desired configuration; read the cards. Only then
decide which side owns each card, and only then act. From there all parts work side by side and wake each other through
one signal. A part with a failure that it cannot repair ends the process, which Kubernetes starts anew.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from tessera.agent.base.options import AgentOptions
from tessera.agent.health.policy import APPLICATION_XIDS
from tessera.agent.inventory.card_ownership import CardOwner
from tessera.agent.main.wiring import Components
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NotSupported, NvmlError

_log = logging.getLogger(__name__)

#: Seconds before a kubelet that did not answer at the start is asked again.
_KUBELET_PAUSE = 0.5
#: Seconds of one wait for hardware events; the call is made again at once.
_EVENT_WAIT = 60.0


async def run(
    options: AgentOptions,
    client: Client,
    hardware: AsyncNvml,
    kubelet: Kubelet,
    clock: Clock,
    *,
    rng: random.Random | None = None,
    reboot: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Runs one node's agent until cancelled. It may be killed at any moment and started again.

    Args:
        options: the node's name, folders and settings.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the agent.
        hardware: the node's cards, already entered (``async with``); the caller closes it.
        kubelet: the node's kubelet.
        clock: the time.
        rng: for jitter; seeded in tests.
        reboot: reboots the node, if the options allow it; raises OSError on failure.

    Raises:
        NvmlError: the cards cannot be listed at all.
        ExceptionGroup: a part failed, and only a fresh start can help.
    """
    await run_components(
        Components(options, client, hardware, kubelet, clock, rng=rng or random.Random(), reboot=reboot)
    )


async def run_components(parts: Components) -> None:
    """Runs the parts of an agent until cancelled; raises the errors of :func:`run`."""
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.events.run())
        group.create_task(parts.following.run())
        await parts.mirror.start(group)
        await parts.following.wait_first_read()
        await parts.take_stock()
        await _note_holders(parts)
        group.create_task(_watch_hardware(parts))
        for part in (parts.layouts, parts.mps, parts.health, parts.teller, parts.memory):
            group.create_task(part.run(), name=type(part).__name__)
        while not parts.roles.decided:
            await parts.changes.wait(parts.changes.count)
        group.create_task(parts.on_demand.run())
        group.create_task(parts.shelf.run())


async def _note_holders(parts: Components) -> None:
    """Leaves cards that pods hold on the static side if no file names their owner: their MIG mode must not change."""
    parents = {each: card.uuid for card in parts.stock.inventory.gpus for each in (card.uuid, *card.mig_attributes)}
    while any(not parts.roles.is_known(card) for card in parents.values()):
        try:
            held = {parents[uuid] for uuid in await parts.holders.read() if uuid in parents}
        except ConnectionError as error:
            _log.warning("nothing is done to the cards before kubelet says which pods hold them: %s", error)
            await parts.clock.sleep(_KUBELET_PAUSE)
            continue
        parts.roles.assume({card: CardOwner.STATIC for card in held if not parts.roles.is_known(card)})
        return


async def _watch_hardware(parts: Components) -> None:
    while True:
        try:
            event = await parts.hardware.wait_event(_EVENT_WAIT)
            parts.health.hardware_event(event)
            # A failing program may cause hundreds of these a second, and they change nothing on a card.
            if event is not None and event.xid not in APPLICATION_XIDS:
                await parts.look_again(event.gpu)
        except NotSupported as error:
            _log.warning("hardware events are not watched, a lost card shows at the next probe only: %s", error)
            return
        except NvmlError as error:
            _log.warning("hardware events cannot be watched, again in %.0f s: %s", _EVENT_WAIT, error)
            parts.health.event_watch_failed(str(error))
            await parts.clock.sleep(_EVENT_WAIT)
