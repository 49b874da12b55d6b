"""Which entries of the device plugin may be given out: the verdicts on cards and instances, carried to every entry.

A bad card takes all its shares and MIG devices along, a bad instance all the shares of that instance and nothing else.
An entry whose card or instance is not there any more is not fit.
"""

from collections.abc import Callable, Iterable

from tessera.agent.health.faults import DeviceHealth, DeviceScope
from tessera.agent.health.policy import Reaction
from tessera.api.sharing.devices import Device, Gpu

_GONE = DeviceHealth(Reaction.DRAIN, "the device is no longer there")


def entry_health(
    devices: Iterable[Device], gpus: Iterable[Gpu], verdict: Callable[[DeviceScope], DeviceHealth]
) -> dict[str, DeviceHealth]:
    """The verdict on each entry, by its id.

    Args:
        devices: the entries of one or more resources.
        gpus: the node's cards as they are now.
        verdict: what is thought of a card or an instance.
    """
    scopes: dict[str, DeviceScope] = {}
    for gpu in gpus:
        scopes[gpu.uuid] = DeviceScope(gpu.uuid)
        for mig in gpu.mig_devices:
            scopes[mig.uuid] = DeviceScope(gpu.uuid, mig.gi_id, mig.ci_id)
    judged = {uuid: verdict(scope) for uuid, scope in scopes.items()}
    return {device.id: judged.get(device.uuid, _GONE) for device in devices}
