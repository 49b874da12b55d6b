"""The text of a sample: names and units of both dialects, labels of holders, nothing twice, nothing invented."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.monitoring.conftest import Rows

from tessera.agent.base.settings import MetricNames
from tessera.agent.monitoring.exposition import ExpositionOptions, XidHistory, render
from tessera.agent.monitoring.families import (
    NVLINK_48,
    NVLINK_49,
    OF_INSTANCES,
    XID_48,
    XID_49,
    XID_COUNT,
    Family,
    dcgm_families,
)
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, ProcessUse, silent_gpu
from tessera.api.names import PodUid
from tessera.nvml.errors import XIDS
from tessera.nvml.interface import GpuInfo, GpuUuid
from tessera.nvml.measurements import Absence, Measurements, Quantity

GIB = 1 << 30
GPU, MIG = GpuUuid("GPU-1"), "MIG-1"
INFO = GpuInfo(
    uuid=GPU,
    index=3,
    minor=3,
    name="NVIDIA H100 80GB HBM3",
    memory_mib=81920,
    pci_bus_id="00000000:07:00.0",
    pci_device_id="0x233010DE",
    compute_capability=(9, 0),
)
MEASURED = Measurements(
    {
        Quantity.SM_CLOCK: 1.98e9,
        Quantity.ENERGY: 12.5,
        Quantity.GPU_UTILIZATION: 0.25,
        Quantity.MEMORY_USED: 3.0 * GIB,
        Quantity.THROTTLED_POWER: 1.5,
        Quantity.THROTTLED_THERMAL: 2.5,
        Quantity.ENGINE_ACTIVE: 0.5,
        Quantity.THROTTLE_REASONS: float(0x4 | 0x20),
    },
    {Quantity.MEMORY_TEMPERATURE: Absence.NOT_SUPPORTED},
)
Read = Callable[[bytes, str], Rows]


def lease(pod: str, device: str = GPU, ratio: float = 1.0, **more: str) -> Lease:
    given: dict[str, Any] = {"namespace": "team", "container": "main", "kind": "whole", **more}
    return Lease(pod=pod, uid=PodUid(f"uid-{pod}"), device=device, ratio=ratio, **given)


def sample(*leases: Lease, processes: tuple[ProcessUse, ...] = (), mig: tuple[DeviceSample, ...] = ()) -> NodeSample:
    card = DeviceSample(uuid=GPU, measured=MEASURED, processes=processes)
    gpu = GpuSample(info=INFO, card=card, mig_devices=mig)
    return NodeSample(taken=0.0, driver_version="580.1", gpus=(gpu,), leases=leases, nvlink_rates={GPU: 5e9})


def text(taken: NodeSample, names: MetricNames = MetricNames.BOTH, max_series: int = 1000) -> bytes:
    options = ExpositionOptions(names=names, node="node-1", max_series=max_series)
    return render(taken, options, unix_time=1.7e9, xids={GPU: XidHistory().add(31).add(79).add(31).add(79)})


@pytest.mark.parametrize(
    ("old", "value", "new", "base"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", 1980, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 12500, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 12.5),
        ("DCGM_FI_DEV_GPU_UTIL", 25, "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.25),
        ("DCGM_FI_DEV_FB_USED", 3072, "DCGM_FI_DEV_FB_USED_BYTES", 3 * GIB),
        ("DCGM_FI_DEV_POWER_VIOLATION", 1.5e9, "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", 1.5),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.5),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 5000, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 5e9),
        ("DCGM_FI_DEV_XID_ERRORS", 79, "DCGM_FI_DEV_XID_ERROR", 79),
    ],
)
def test_each_dialect_has_its_names_and_units(rows: Read, old: str, value: float, new: str, base: float) -> None:
    for names, expected in (
        (MetricNames.DCGM_48, {old: value}),
        (MetricNames.DCGM_49, {new: base}),
        (MetricNames.BOTH, {old: value, new: base}),
    ):
        page = text(sample(), names)
        found = {name: row[1] for name in (old, new) for row in rows(page, name)}
        assert found == pytest.approx(expected)


def test_each_dialect_has_its_labels(rows: Read) -> None:
    page = text(sample(lease("train")))
    ((old, _),) = rows(page, "DCGM_FI_DEV_GPU_UTIL")
    ((new, _),) = rows(page, "DCGM_FI_DEV_GPU_UTIL_RATIO")
    common = {
        "gpu": "3",
        "UUID": GPU,
        "pci_bus_id": "00000000:07:00.0",
        "device": "nvidia3",
        "modelName": "NVIDIA H100 80GB HBM3",
        "namespace": "team",
        "pod": "train",
        "container": "main",
    }
    assert old == {**common, "Hostname": "node-1", "hostname": "node-1", "DCGM_FI_DRIVER_VERSION": "580.1"}
    assert new == {**common, "hostname": "node-1", "DCGM_FI_SYSTEM_DRIVER_VERSION": "580.1"}


@pytest.mark.parametrize(
    ("names", "node_label"),
    [(MetricNames.DCGM_48, "Hostname"), (MetricNames.DCGM_49, "hostname"), (MetricNames.BOTH, "Hostname")],
)
def test_xids_are_counted_by_number(rows: Read, names: MetricNames, node_label: str) -> None:
    page = text(sample(), names)
    expected = [({"gpu": GPU, "xid": "31"}, 2), ({"gpu": GPU, "xid": "79"}, 2)]
    assert rows(page, "tessera_gpu_xid_errors_total") == expected
    found = rows(page, "DCGM_EXP_XID_ERRORS_TOTAL")
    assert [(labels["UUID"], labels["xid"], value) for labels, value in found] == [(GPU, "31", 2), (GPU, "79", 2)]
    assert all(labels[node_label] == "node-1" for labels, _ in found)


@pytest.mark.parametrize(
    ("xid", "message"),
    [(0, "No Error"), (79, XIDS[79].text), (48, XIDS[48].text), (7777, "Unknown Error")],
)
@pytest.mark.parametrize("name", ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"])
def test_the_last_xid_alone_has_its_code_and_message(rows: Read, name: str, xid: int, message: str) -> None:
    page = render(sample(), ExpositionOptions(node="node-1"), xids={GPU: XidHistory(last=xid, counts={xid: 1})})
    ((labels, value),) = rows(page, name)
    assert (labels["err_code"], labels["err_msg"], value) == (str(xid), message, xid)
    assert page.decode().count("err_code=") == 2


def test_a_quantity_without_a_value_has_no_row_but_a_reason(rows: Read) -> None:
    page = text(sample())
    assert rows(page, "DCGM_FI_DEV_MEMORY_TEMP") == []
    assert rows(page, "tessera_gpu_memory_temperature_celsius") == []
    expected = {"metric": "memory_temperature", "reason": "not_supported"}
    assert rows(page, "tessera_metric_unavailable") == [(expected, 1)]


def test_throttle_reasons_are_one_row_each(rows: Read) -> None:
    found = {labels["reason"]: value for labels, value in rows(text(sample()), "tessera_gpu_throttled")}
    assert {reason for reason, value in found.items() if value} == {"power_cap", "sw_thermal"}
    assert found["hw_thermal"] == 0


def test_a_shared_card_is_nobodys_and_its_parts_sum_to_what_was_measured(rows: Read) -> None:
    processes = (
        ProcessUse(PodUid("uid-a"), 2 * GIB, 0.2),
        ProcessUse(PodUid("uid-b"), 1 * GIB, 0.05),
        ProcessUse(None, 5, 0.0),
    )
    shares = [lease(pod, ratio=0.25, kind="time-slicing") for pod in ("a", "b")]
    page = text(sample(*shares, processes=processes))
    ((labels, _),) = rows(page, "DCGM_FI_DEV_FB_USED")
    assert "pod" not in labels
    memory = {labels["pod"]: value for labels, value in rows(page, "tessera_pod_gpu_memory_used_bytes")}
    assert memory == {"a": 2 * GIB, "b": GIB}
    busy = rows(page, "tessera_pod_gpu_busy_ratio")
    assert sum(value for _, value in busy) == pytest.approx(0.25)
    assert sum(value for _, value in rows(page, "tessera_pod_gpu_share_ratio")) == 0.5
    assert {labels["kind"] for labels, _ in busy} == {"time-slicing"}


def test_two_containers_of_one_pod_count_their_processes_once(rows: Read) -> None:
    both = [lease("a", ratio=0.5, container=name, kind="mps") for name in ("one", "two")]
    page = text(sample(*both, processes=(ProcessUse(PodUid("uid-a"), GIB, 0.5),)))
    assert [value for _, value in rows(page, "tessera_pod_gpu_memory_used_bytes")] == [GIB]
    assert len(rows(page, "tessera_pod_gpu_share_ratio")) == 2


def test_activity_of_processes_that_is_not_measured_has_no_row(rows: Read) -> None:
    page = text(sample(lease("a", ratio=0.5), processes=(ProcessUse(PodUid("uid-a"), GIB),)))
    assert rows(page, "tessera_pod_gpu_busy_ratio") == []
    assert rows(page, "tessera_pod_gpu_memory_used_bytes")[0][1] == GIB


def test_a_mig_device_has_rows_of_its_own_below_its_card(rows: Read) -> None:
    values = Measurements({Quantity.MEMORY_USED: 1.0 * GIB, Quantity.ENGINE_ACTIVE: 0.75})
    device = DeviceSample(uuid=MIG, gi_id=2, profile="3g.40gb", share=0.5, measured=values)
    page = text(sample(lease("infer", MIG, kind="slice"), mig=(device,)))
    instance = [labels for labels, _ in rows(page, "DCGM_FI_DEV_FB_USED") if labels.get("GPU_I_ID")]
    assert [(each["GPU_I_ID"], each["GPU_I_PROFILE"], each["UUID"], each["pod"]) for each in instance] == [
        ("2", "3g.40gb", GPU, "infer")
    ]
    ((labels, value),) = rows(page, "tessera_pod_gpu_share_ratio")
    assert (labels["gpu"], labels["device"], labels["uid"], value) == (GPU, MIG, "uid-infer", 0.5)
    assert rows(page, "tessera_mig_engine_active_ratio")[0][1] == 0.75


DCGM_FAMILIES = [
    *(family for quantity in Quantity for family in dcgm_families(quantity, MetricNames.BOTH)),
    *(XID_48, XID_49, XID_COUNT, NVLINK_48, NVLINK_49),
]


@pytest.mark.parametrize("family", DCGM_FAMILIES, ids=lambda family: family.name)
def test_a_card_with_gpu_instances_has_rows_of_these_only_and_they_have_its_other_values(
    rows: Read, family: Family
) -> None:
    """As dcgm-exporter by default; two compute instances of one GPU instance are one row."""
    measured = dict.fromkeys(Quantity, 2.0)
    own = Measurements(dict.fromkeys(OF_INSTANCES, 1.0))
    mig = tuple(
        DeviceSample(uuid=uuid, gi_id=gi_id, profile="3g.40gb", measured=own)
        for uuid, gi_id in ((MIG, 1), ("MIG-2", 2), ("MIG-3", 2))
    )
    taken = sample(lease("infer", MIG, kind="mig"), lease("one", "MIG-2"), lease("two", "MIG-3"), mig=mig)
    card = DeviceSample(uuid=GPU, measured=Measurements(measured))
    gpu = msgspec.structs.replace(taken.gpus[0], card=card)
    found = rows(text(msgspec.structs.replace(taken, gpus=(gpu,))), family.name)
    shown = {(labels["GPU_I_ID"], labels["GPU_I_PROFILE"], labels.get("pod")) for labels, _ in found}
    assert shown == {("1", "3g.40gb", "infer"), ("2", "3g.40gb", None)}
    quantity = next((each for each in Quantity if family in dcgm_families(each, MetricNames.BOTH)), None)
    if quantity is not None:
        value = 1.0 if quantity in OF_INSTANCES else 2.0
        assert [each for _, each in found] == pytest.approx([value * family.factor] * 2)


@pytest.mark.parametrize("silent", [False, True])
def test_a_card_in_mig_mode_without_instances_has_rows_of_its_own(rows: Read, silent: bool) -> None:
    info = msgspec.structs.replace(INFO, mig_enabled=True)
    gpu = GpuSample(info=info, card=DeviceSample(uuid=GPU, measured=MEASURED))
    taken = NodeSample(taken=0.0, gpus=() if silent else (gpu,), silent=(silent_gpu(info),) if silent else ())
    ((labels, _),) = rows(text(taken), "DCGM_FI_DEV_XID_ERRORS")
    assert (labels["UUID"], labels.get("GPU_I_ID")) == (GPU, None)


@pytest.mark.parametrize("family", [each for each in DCGM_FAMILIES if each.dialect is MetricNames.BOTH])
@pytest.mark.parametrize("names", MetricNames)
def test_a_name_of_both_dialects_has_the_labels_of_those_that_are_shown(
    rows: Read, names: MetricNames, family: Family
) -> None:
    gpu = GpuSample(info=INFO, card=DeviceSample(uuid=GPU, measured=Measurements(dict.fromkeys(Quantity, 1.0))))
    found = rows(text(NodeSample(taken=0.0, driver_version="580.1", gpus=(gpu,)), names), family.name)
    old, new = {"Hostname", "hostname", "DCGM_FI_DRIVER_VERSION"}, {"hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"}
    expected = {MetricNames.DCGM_48: old, MetricNames.DCGM_49: new, MetricNames.BOTH: old | new}[names]
    for labels, _ in found:
        assert {each for each in labels if each.lower() == "hostname" or "DRIVER" in each} == expected
    assert found


def test_labels_of_pods_are_bounded_and_what_is_cut_is_counted(rows: Read) -> None:
    shares = [lease(f"p{n:02}", ratio=0.05) for n in range(20)]
    whole = rows(text(sample(*shares)), "tessera_pod_gpu_share_ratio")
    assert len(whole) == 20
    page = text(sample(*shares), max_series=100)
    kept = rows(page, "tessera_pod_gpu_share_ratio")
    assert 0 < len(kept) < 20
    assert [labels["pod"] for labels, _ in kept] == [f"p{n:02}" for n in range(len(kept))]
    assert rows(page, "tessera_pod_series_cut") == [({}, 20 - len(kept))]
    none = text(sample(lease("train")), max_series=0)
    assert b"train" not in none


def test_foreign_text_in_labels_is_escaped(rows: Read) -> None:
    odd = msgspec.structs.replace(lease("a"), namespace='x"} 1\nfake 2\\')
    page = text(sample(odd))
    assert rows(page, "tessera_pod_gpu_share_ratio")[0][0]["namespace"] == 'x"} 1\nfake 2\\'
    assert rows(page, "fake") == []


def test_each_family_is_written_once_with_help_and_type() -> None:
    page = text(sample(lease("a"))).decode()
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    helped = [line.split()[2] for line in page.splitlines() if line.startswith("# HELP")]
    assert helped == names
    assert all(family.documentation for family in text_string_to_metric_families(page))


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (MetricNames.DCGM_48, "DCGM_FI_DEV_XID_ERRORS"),
        (MetricNames.DCGM_49, "DCGM_FI_DEV_XID_ERROR"),
        (MetricNames.BOTH, "DCGM_FI_DEV_XID_ERRORS"),
    ],
)
def test_the_xids_of_a_card_that_does_not_answer_are_shown_without_measurements(
    rows: Read, names: MetricNames, last: str
) -> None:
    page = text(NodeSample(taken=0.0, silent=(silent_gpu(INFO),)), names)
    assert rows(page, "tessera_gpu_last_xid") == [({"gpu": GPU}, 79)]
    assert rows(page, "tessera_gpu_xid_errors_total") == [({"gpu": GPU, "xid": each}, 2) for each in ("31", "79")]
    assert [(labels["UUID"], value) for labels, value in rows(page, last)] == [(GPU, 79)]
    assert [labels["xid"] for labels, _ in rows(page, "DCGM_EXP_XID_ERRORS_TOTAL")] == ["31", "79"]
    assert rows(page, "tessera_gpu_info") == []
