"""Makes the document of the page ``/usage`` from a sample. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from tessera.agent.monitoring.exposition import ExpositionOptions
from tessera.agent.monitoring.lease_states import MEMORY, JudgedLease, LeaseStates, PastLease
from tessera.agent.monitoring.sample import CardOffer, DeviceSample, GpuSample, NodeSample, measure_lease
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.usage import CardUsage, DeviceUsage, EndedLease, LeaseUsage, NodeUsage
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity

_NOT_OFFERED = CardOffer("")


def report_usage(
    sample: NodeSample,
    options: ExpositionOptions,
    *,
    unix_time: float,
    judged: Sequence[JudgedLease],
    health: Mapping[str, CardHealth],
    states: LeaseStates,
) -> NodeUsage:
    """Makes the document.

    Args:
        sample: the sample.
        options: the node's name, and the most leases to report.
        unix_time: when the sample was taken.
        judged: the leases of the sample with their states.
        health: the health of the cards, by UUID.
        states: has judged the leases; knows those that have ended.
    """
    devices = {device.uuid: device for gpu in sample.cards for device in gpu.devices}
    silent = {lease.device for gpu in sample.silent for lease in gpu.leases}
    ordered = sorted(judged, key=lambda each: (each.lease.namespace, each.lease.pod, each.lease.container))
    leases = ordered[: options.max_series]
    return NodeUsage(
        node=options.node,
        taken=unix_time,
        driver=sample.driver_version,
        cards=tuple(_cards(sample, health)),
        leases=tuple(
            _lease(each, devices[each.lease.device], measured=each.lease.device not in silent) for each in leases
        ),
        ended=tuple(_ended(each, sample.taken) for each in states.ended),
        ended_window=0.0 if states.complete_from is None else min(MEMORY, sample.taken - states.complete_from),
        cut=len(ordered) - len(leases),
        simulated=options.simulated,
    )


def _cards(sample: NodeSample, health: Mapping[str, CardHealth]) -> list[CardUsage]:
    cards = (
        _card(gpu, health.get(gpu.info.uuid, CardHealth()), sample.offers.get(gpu.info.uuid, _NOT_OFFERED))
        for gpu in sample.cards
    )
    return sorted(cards, key=lambda card: card.index)


def _card(gpu: GpuSample, health: CardHealth, offer: CardOffer) -> CardUsage:
    measured = gpu.card.measured
    bits = int(measured.values.get(Quantity.THROTTLE_REASONS, 0))
    return CardUsage(
        uuid=gpu.info.uuid,
        index=gpu.info.index,
        model=gpu.info.name,
        mig=gpu.info.mig_enabled or bool(gpu.mig_devices),
        slots=gpu.slots,
        kind=offer.kind,
        replicas=offer.replicas,
        values=_values(gpu.card),
        absent={quantity.value: reason.value for quantity, reason in measured.absent.items()},
        throttled=tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit),
        processes=len(gpu.card.processes),
        devices=_devices(gpu.mig_devices),
        health=health,
    )


def _devices(devices: Iterable[DeviceSample]) -> tuple[DeviceUsage, ...]:
    return tuple(
        DeviceUsage(
            uuid=each.uuid,
            profile=each.profile,
            start=each.start,
            size=each.size,
            share=each.share,
            values=_values(each),
            processes=len(each.processes),
        )
        for each in devices
    )


def _values(device: DeviceSample) -> dict[str, float]:
    return {quantity.value: value for quantity, value in device.measured.values.items()}


def _lease(judged: JudgedLease, device: DeviceSample, *, measured: bool) -> LeaseUsage:
    lease = judged.lease
    memory, busy = measure_lease(lease, device) if measured else (None, None)
    return LeaseUsage(
        namespace=lease.namespace,
        pod=lease.pod,
        uid=lease.uid,
        container=lease.container,
        device=lease.device,
        kind=lease.kind,
        share=device.share * lease.ratio,
        state=judged.state.value,
        evidence=judged.evidence,
        held=judged.held,
        wasted=judged.wasted,
        active=judged.active,
        memory=memory,
        busy=busy,
        findings=judged.findings,
        fault=judged.fault,
        limit=judged.limit,
    )


def _ended(past: PastLease, now: float) -> EndedLease:
    lease = past.last.lease
    return EndedLease(
        namespace=lease.namespace,
        pod=lease.pod,
        uid=lease.uid,
        container=lease.container,
        device=lease.device,
        gpu=past.gpu,
        share=past.share,
        ago=now - past.ended,
        held=past.last.held,
        wasted=past.last.wasted,
        active=past.last.active,
    )
