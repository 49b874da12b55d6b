"""The JSON document of an agent's page ``/usage``: the use of its node's cards.

The page has the values of ``/metrics`` by card, MIG device and lease, for readers that show them: ``tessera top``,
``tessera idle`` and the live page. Values are in base units (bytes, watts, hertz, degrees Celsius, ratios of 0 to 1)
under the names of :class:`tessera.nvml.measurements.Quantity`; a quantity that is not measured is missing.
"""

from collections.abc import Mapping

import msgspec

from tessera.api.nodes.health import CardHealth, Finding

#: The page's path, and the port of an agent's pages.
USAGE_PATH = "/usage"
AGENT_PORT = 8082


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG device.

    Attributes:
        uuid: ``MIG-…``.
        profile: of its GPU instance.
        start: first memory slot of its GPU instance.
        size: memory slots of its GPU instance.
        share: its part of the card, 0 to 1.
        values: what was measured.
        processes: the number of processes that compute on it.
    """

    uuid: str
    profile: str = ""
    start: int = 0
    size: int = 0
    share: float = 0.0
    values: Mapping[str, float] = {}
    processes: int = 0


class CardUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A card. One that does not answer, such as a lost card, has no values and no devices.

    Attributes:
        uuid: ``GPU-…``.
        index: of the driver.
        model: the product's name.
        mig: True if MIG mode is on.
        slots: its memory slots; 0 if it has no MIG.
        kind: its offer: ``whole``, ``time-slicing``, ``mps`` or ``mig`` (of a layout); empty if it is cut on demand, or
            not offered.
        replicas: shares of the card, or of each of its MIG devices.
        values: what was measured.
        absent: by quantity, the reason that it was not measured.
        throttled: the reasons for which the card is slowed down.
        processes: the number of processes that compute on the card itself.
        devices: its MIG devices.
        health: its state, with evidence.
    """

    uuid: str
    index: int = 0
    model: str = ""
    mig: bool = False
    slots: int = 0
    kind: str = ""
    replicas: int = 1
    values: Mapping[str, float] = {}
    absent: Mapping[str, str] = {}
    throttled: tuple[str, ...] = ()
    processes: int = 0
    devices: tuple[DeviceUsage, ...] = ()
    health: CardHealth = CardHealth()


class LeaseUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hold of one container on one device, and the use that it makes of it.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        container: its name; empty if kubelet does not list it yet.
        device: UUID of the card or MIG device.
        kind: ``whole``, ``time-slicing``, ``mps``, ``mig`` (of a layout) or ``slice`` (made for the pod).
        share: part of the card, 0 to 1.
        state: ``never_used``, ``resident``, ``idle``, ``busy`` or ``unknown``.
        evidence: the reason for the state, in words.
        held: seconds since the agent first saw the lease.
        wasted: GPU-seconds in the states never_used, idle and resident.
        active: GPU-seconds in the state busy.
        memory: bytes that its processes hold; ``None`` if not measured.
        busy: share of time in which the device computed for it; ``None`` if not measured.
        findings: what is wrong with the use; empty also if nothing could be measured.
    """

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""
    device: str = ""
    kind: str = ""
    share: float = 0.0
    state: str = "unknown"
    evidence: str = ""
    held: float = 0.0
    wasted: float = 0.0
    active: float = 0.0
    memory: float | None = None
    busy: float | None = None
    findings: tuple[Finding, ...] = ()


class EndedLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A lease that ended a short time ago, so that readers who come seldom count it to its end.

    Attributes:
        namespace: of the pod.
        pod: name of the pod.
        uid: of the pod.
        container: its name; empty if kubelet did not list it.
        device: UUID of the card or MIG device, which may be gone.
        gpu: UUID of the card.
        share: part of the card, 0 to 1.
        ago: seconds between its end and the sample.
        held: seconds from the time that the agent first saw it to its end.
        wasted: GPU-seconds in the states never_used, idle and resident.
        active: GPU-seconds in the state busy.
    """

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""
    device: str = ""
    gpu: str = ""
    share: float = 0.0
    ago: float = 0.0
    held: float = 0.0
    wasted: float = 0.0
    active: float = 0.0


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The use of one node's cards.

    Attributes:
        node: the node's name.
        taken: Unix time of the sample; 0 before the first one.
        driver: version of the kernel module.
        cards: the node's cards, by index.
        leases: what containers hold, by namespace, pod and container.
        ended: leases that ended a short time ago, oldest first.
        ended_window: seconds before the sample; of leases that ended within them, none is missing in ``ended``.
        cut: number of leases beyond the agent's ``--max-series``.
        simulated: True if the cards exist only in a lab.
    """

    node: str = ""
    taken: float = 0.0
    driver: str = ""
    cards: tuple[CardUsage, ...] = ()
    leases: tuple[LeaseUsage, ...] = ()
    ended: tuple[EndedLease, ...] = ()
    ended_window: float = 0.0
    cut: int = 0
    simulated: bool = False
