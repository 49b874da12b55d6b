"""Writes a sample in Prometheus's text format.

``prometheus_client`` needs some 10 µs for a line, and a node of 56 slices has thousands, so the lines of measured
quantities are written here, once for each sample; a scrape only copies them.

Rules:

- A row of a card or MIG device that exactly one container holds carries that container's labels; a row of a shared one
  carries none, and the families ``tessera_pod_*`` show the parts. So a sum over pods counts no card twice.
- At most ``max_series`` rows carry labels of pods. Leases are kept in the order of namespace, pod and container; the
  rest is counted.
- A card that does not answer has the rows of its health and of its XIDs, and no others.
- dcgm-exporter's series follow its own rule (``-d f``, its default): a card with GPU instances has a row for each of
  them, and none of its own. The row has what is measured of the instance, and the values of the card.
- A quantity without a value has no row; ``tessera_metric_unavailable`` counts the devices by reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.agent.base.settings import MetricNames
from tessera.agent.monitoring.families import (
    COUNTER,
    GAUGE,
    GPU_FAMILIES,
    MIG_FAMILIES,
    NVLINK_48,
    NVLINK_49,
    OF_INSTANCES,
    XID_48,
    XID_49,
    XID_COUNT,
    Family,
    dcgm_families,
    of_dialect,
)
from tessera.agent.monitoring.lease_states import JudgedLease
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, measure_lease
from tessera.api.nodes.health import CardHealth
from tessera.nvml.errors import XIDS as XIDS_BY_NUMBER
from tessera.nvml.interface import GpuInfo
from tessera.nvml.measurements import THROTTLE_REASONS, Quantity

Labels = Mapping[str, str]

POD_SHARE = Family("tessera_pod_gpu_share_ratio", GAUGE, "part of a card that a container holds")
POD_MEMORY = Family(
    "tessera_pod_gpu_memory_used_bytes", GAUGE, "memory of a device that the processes of a container hold"
)
POD_BUSY = Family(
    "tessera_pod_gpu_busy_ratio", GAUGE, "share of time in which the device of a container computed for it"
)
POD_STATE = Family("tessera_pod_gpu_state", GAUGE, "1 for the state of a lease, in the label state")
POD_WASTED = Family(
    "tessera_pod_gpu_wasted_seconds_total", COUNTER, "GPU-seconds of a lease in the states never_used, idle or resident"
)
POD_ACTIVE = Family("tessera_pod_gpu_active_seconds_total", COUNTER, "GPU-seconds of a lease in the state busy")
POD_POWER = Family("tessera_pod_gpu_power_watts", GAUGE, "part of a card's power that a lease has, mean of a minute")
POD_ENERGY = Family("tessera_pod_gpu_energy_joules_total", COUNTER, "part of a card's energy that a lease has")
POD_FINDING = Family("tessera_pod_gpu_finding", GAUGE, "1 for each kind of finding about a lease, in the label finding")
INFO = Family("tessera_gpu_info", GAUGE, "1 for each card, with its properties; in a lab with the label `simulated`")
LAST_XID = Family("tessera_gpu_last_xid", GAUGE, XID_48.help)
XIDS = Family("tessera_gpu_xid_errors_total", COUNTER, XID_COUNT.help)
THROTTLED = Family("tessera_gpu_throttled", GAUGE, "1 while a card is slowed down for this reason, else 0")
HEALTH_STATE = Family(
    "tessera_gpu_health_state",
    GAUGE,
    "1 for the state of a card, in the label state; also of a card that is lost or cannot be read",
)
UNAVAILABLE = Family("tessera_metric_unavailable", GAUGE, "devices on which a quantity is not measured, by reason")
CUT = Family("tessera_pod_series_cut", GAUGE, "leases without series of their own, for the limit --max-series")
SAMPLE_TIME = Family("tessera_sample_timestamp_seconds", GAUGE, "Unix time of the sample that the series show")


class XidHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The XIDs that the driver reported about a card since the agent started.

    Attributes:
        last: the last one, 0 for none.
        counts: how often each was reported.
    """

    last: int = 0
    counts: Mapping[int, int] = {}

    def add(self, xid: int) -> "XidHistory":
        """The history with one more XID."""
        return XidHistory(last=xid, counts={**self.counts, xid: self.counts.get(xid, 0) + 1})


class ExpositionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the series.

    Attributes:
        names: dialect of dcgm-exporter's names.
        node: name of the node, for dcgm-exporter's label.
        max_series: most rows with labels of pods.
        simulated: True if the cards exist only in a lab.
    """

    names: MetricNames = MetricNames.BOTH
    node: str = ""
    max_series: int = 10_000
    simulated: bool = False


def render(
    sample: NodeSample,
    options: ExpositionOptions,
    *,
    unix_time: float = 0.0,
    xids: Mapping[str, XidHistory] | None = None,
    judged: Iterable[JudgedLease] = (),
    health: Mapping[str, CardHealth] | None = None,
) -> bytes:
    """Returns the text of a sample.

    Args:
        sample: the sample.
        options: dialect and limits.
        unix_time: when it was taken.
        xids: by card, the XIDs that the driver reported.
        judged: the leases of the sample with their states.
        health: the health of each card, by UUID.
    """
    leases = list(judged)
    renderer = _Renderer(sample, options, {id(each.lease): len(each.findings) for each in leases})
    for gpu in sample.gpus:
        renderer.add_card(gpu, (xids or {}).get(gpu.info.uuid, XidHistory()))
        for device in gpu.mig_devices:
            renderer.add_mig_device(gpu, device)
    for silent in sample.silent:
        renderer.add_xids(silent, (xids or {}).get(silent.info.uuid, XidHistory()))
    for gpu_uuid, found in (health or {}).items():
        renderer.page.add(HEALTH_STATE, {"gpu": gpu_uuid, "state": found.state}, 1)
    renderer.add_leases(leases)
    renderer.add_absent()
    renderer.page.add(SAMPLE_TIME, {}, unix_time)
    return renderer.page.text()


class _Page:
    """Lines by family, so that each family's lines stand together."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {}

    def add(self, family: Family, labels: Labels, value: float) -> None:
        """Adds a row, in the quantity's base unit."""
        self.add_text(family, _label_text(labels), value)

    def add_text(self, family: Family, labels: str, value: float) -> None:
        """Adds a row with labels that are text already."""
        self._lines.setdefault(family, []).append(f"{family.name}{labels} {value * family.factor:.12g}\n")

    def text(self) -> bytes:
        return "".join(self._parts()).encode()

    def _parts(self) -> Iterator[str]:
        for family, lines in self._lines.items():
            yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.type}\n"
            yield from lines


class _Leases:
    """The leases that get series of their own; ``findings`` is the number of findings by the lease's identity.

    Attributes:
        kept: these leases.
        cut: number of the other ones.
    """

    def __init__(self, sample: NodeSample, options: ExpositionOptions, findings: Mapping[int, int]) -> None:
        rows = {device.uuid: _rows_of(gpu, device, options.names) for gpu in sample.gpus for device in gpu.devices}
        self.kept: list[Lease] = []
        self.cut = 0
        self._by_device: dict[str, list[Lease]] = {}
        left = options.max_series
        for lease in sorted(sample.leases, key=lambda each: (each.namespace, each.pod, each.container, each.device)):
            self._by_device.setdefault(lease.device, []).append(lease)
            cost = 8 + findings.get(id(lease), 0) + rows[lease.device]
            if cost <= left:
                left -= cost
                self.kept.append(lease)
            else:
                self.cut += 1
        self._kept = set(map(id, self.kept))

    def holder(self, *devices: str) -> Lease | None:
        """The only container that holds one of these devices, if it gets series; else ``None``."""
        leases = [lease for device in devices for lease in self._by_device.get(device, ())]
        alone = len(leases) == 1 and leases[0].ratio >= 1 and id(leases[0]) in self._kept
        return leases[0] if alone else None


def _rows_of(gpu: GpuSample, device: DeviceSample, names: MetricNames) -> int:
    return len(device.measured.values) + sum(len(dcgm_families(each, names)) for each in _dcgm_values(gpu, device))


def _dcgm_values(gpu: GpuSample, device: DeviceSample) -> Mapping[Quantity, float]:
    """What dcgm-exporter shows of a device: of a GPU instance its own measurements, and the other ones of its card."""
    if device is gpu.card:
        return device.measured.values
    of_card = {each: value for each, value in gpu.card.measured.values.items() if each not in OF_INSTANCES}
    return of_card | {each: value for each, value in device.measured.values.items() if each in OF_INSTANCES}


class _Renderer:
    """Adds the rows of one sample to a page.

    Attributes:
        page: the rows so far.
    """

    def __init__(self, sample: NodeSample, options: ExpositionOptions, findings: Mapping[int, int]) -> None:
        self.page = _Page()
        self._sample = sample
        self._options = options
        self._leases = _Leases(sample, options, findings)

    def add_card(self, gpu: GpuSample, xids: XidHistory) -> None:
        """Adds the rows of a card as a whole, and dcgm-exporter's rows of its GPU instances."""
        info, values = gpu.info, gpu.card.measured.values
        own = _label_text({"gpu": info.uuid, "index": str(info.index), **_pod_labels(self._leases.holder(info.uuid))})
        for quantity, value in values.items():
            if quantity in GPU_FAMILIES:
                self.page.add_text(GPU_FAMILIES[quantity], own, value)
        for device, rows in self._dcgm_rows(gpu):
            for quantity, value in _dcgm_values(gpu, device).items():
                rows.add(dcgm_families(quantity, self._options.names), value)
            if info.uuid in self._sample.nvlink_rates:
                rows.add(of_dialect(NVLINK_48, NVLINK_49, self._options.names), self._sample.nvlink_rates[info.uuid])
        self.add_xids(gpu, xids)
        properties = {
            "gpu": info.uuid,
            "index": str(info.index),
            "model": info.name,
            "pci_bus_id": info.pci_bus_id,
            "driver": self._sample.driver_version,
            "mig": str(info.mig_enabled).lower(),
            **({"simulated": "true"} if self._options.simulated else {}),
        }
        self.page.add(INFO, properties, 1)
        if Quantity.THROTTLE_REASONS in values:
            bits = int(values[Quantity.THROTTLE_REASONS])
            for bit, reason in THROTTLE_REASONS.items():
                self.page.add(THROTTLED, {"gpu": info.uuid, "reason": reason}, float(bool(bits & bit)))

    def add_xids(self, gpu: GpuSample, xids: XidHistory) -> None:
        """Adds the XIDs of a card, also of one that does not answer: most lost cards reported one."""
        labels = _label_text({"err_code": str(xids.last), "err_msg": _xid_text(xids.last)})
        for _, rows in self._dcgm_rows(gpu):
            rows.add(of_dialect(XID_48, XID_49, self._options.names), xids.last, labels[1:-1])
            for xid, count in sorted(xids.counts.items()):
                rows.add((XID_COUNT,), count, f'xid="{xid}"')
        self.page.add(LAST_XID, {"gpu": gpu.info.uuid}, xids.last)
        for xid, count in sorted(xids.counts.items()):
            self.page.add(XIDS, {"gpu": gpu.info.uuid, "xid": str(xid)}, count)

    def add_mig_device(self, gpu: GpuSample, device: DeviceSample) -> None:
        """Adds Tessera's own rows of a MIG device."""
        holder = self._leases.holder(device.uuid)
        own = _label_text(
            {"gpu": gpu.info.uuid, "device": device.uuid, "profile": device.profile, **_pod_labels(holder)}
        )
        for quantity, value in device.measured.values.items():
            if quantity in MIG_FAMILIES:
                self.page.add_text(MIG_FAMILIES[quantity], own, value)

    def add_leases(self, judged: Iterable[JudgedLease]) -> None:
        """Adds the parts of containers.

        Containers of one pod on one shared device are not told apart: the first shows the pod's memory and activity.
        """
        places = {device.uuid: (gpu, device) for gpu in self._sample.gpus for device in gpu.devices}
        states = {id(each.lease): each for each in judged}
        shown: set[tuple[str, str]] = set()
        for lease in self._leases.kept:
            gpu, device = places[lease.device]
            labels = _label_text(
                {**_pod_labels(lease), "uid": lease.uid, "gpu": gpu.info.uuid, "device": device.uuid}
                | {"kind": lease.kind}
            )
            self.page.add_text(POD_SHARE, labels, device.share * lease.ratio)
            if id(lease) in states:
                found = states[id(lease)]
                self.page.add_text(POD_STATE, f'{labels[:-1]},state="{found.state.value}"}}', 1)
                self.page.add_text(POD_WASTED, labels, found.wasted)
                self.page.add_text(POD_ACTIVE, labels, found.active)
                if found.energy.power is not None:
                    self.page.add_text(POD_POWER, labels, found.energy.power)
                if found.energy.metered > 0:
                    self.page.add_text(POD_ENERGY, labels, found.energy.energy)
                for finding in found.findings:
                    self.page.add_text(POD_FINDING, f'{labels[:-1]},finding="{finding.kind}"}}', 1)
            if (lease.uid, lease.device) not in shown:
                shown.add((lease.uid, lease.device))
                memory, busy = measure_lease(lease, device)
                if memory is not None:
                    self.page.add_text(POD_MEMORY, labels, memory)
                if busy is not None:
                    self.page.add_text(POD_BUSY, labels, busy)
        self.page.add(CUT, {}, self._leases.cut)

    def add_absent(self) -> None:
        """Adds how many devices lack each quantity, by reason."""
        absent = Counter(
            (quantity.value, reason.value)
            for gpu in self._sample.gpus
            for device in gpu.devices
            for quantity, reason in device.measured.absent.items()
        )
        absent += Counter(
            ("processes", device.processes_absent.value)
            for gpu in self._sample.gpus
            for device in gpu.devices
            if device.processes_absent is not None
        )
        for (metric, reason), count in sorted(absent.items()):
            self.page.add(UNAVAILABLE, {"metric": metric, "reason": reason}, count)

    def _dcgm_rows(self, gpu: GpuSample) -> Iterator[tuple[DeviceSample, "_DcgmRows"]]:
        """Yields each GPU instance of a card, or else the card itself, with its rows in dcgm-exporter's series."""
        instances: dict[int | None, list[DeviceSample]] = {}
        for device in gpu.mig_devices or gpu.devices:
            instances.setdefault(device.gi_id, []).append(device)
        for devices in instances.values():
            holder = self._leases.holder(*(device.uuid for device in devices))
            labels = _dcgm_labels(gpu.info, devices[0]) | _pod_labels(holder)
            yield devices[0], _DcgmRows(self.page, labels, self._sample.driver_version, self._options)


class _DcgmRows:
    """Rows of dcgm-exporter for one device, with the labels of each dialect.

    The node is ``Hostname`` up to dcgm-exporter 4.8.2 and ``hostname`` from 4.8.3 on, so rows of the old dialect have
    both. A name that both dialects have carries the labels of both while both are shown.
    """

    def __init__(self, page: "_Page", labels: Labels, driver: str, options: ExpositionOptions) -> None:
        self._page = page
        self._names = options.names
        old = {"Hostname": options.node, "hostname": options.node, "DCGM_FI_DRIVER_VERSION": driver}
        new = {"hostname": options.node, "DCGM_FI_SYSTEM_DRIVER_VERSION": driver}
        dialects = {MetricNames.DCGM_48: old, MetricNames.DCGM_49: new, MetricNames.BOTH: old | new}
        self._labels = {dialect: _label_text({**labels, **more}) for dialect, more in dialects.items()}

    def add(self, families: Iterable[Family], value: float, more: str = "") -> None:
        """Adds a row for each family; ``more`` is a further label as text."""
        for family in families:
            labels = self._labels[family.dialect if self._names is MetricNames.BOTH else self._names]
            self._page.add_text(family, f"{labels[:-1]},{more}}}" if more else labels, value)


def _xid_text(xid: int) -> str:
    """The label ``err_msg``: dcgm-exporter's words for no error and for an unknown one, else Tessera's."""
    known = XIDS_BY_NUMBER.get(xid)
    return "No Error" if xid == 0 else "Unknown Error" if known is None else known.text


def _dcgm_labels(info: GpuInfo, device: DeviceSample) -> dict[str, str]:
    labels = {
        "gpu": str(info.index),
        "UUID": info.uuid,
        "pci_bus_id": info.pci_bus_id,
        "device": f"nvidia{info.index}",
        "modelName": info.name,
    }
    return (
        labels if device.gi_id is None else {**labels, "GPU_I_PROFILE": device.profile, "GPU_I_ID": str(device.gi_id)}
    )


def _pod_labels(lease: Lease | None) -> dict[str, str]:
    if lease is None:
        return {}
    return {"namespace": lease.namespace, "pod": lease.pod, "container": lease.container}


def _label_text(labels: Labels) -> str:
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escape(value: str) -> str:
    if value.isprintable() and '"' not in value and "\\" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
