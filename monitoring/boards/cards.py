"""Boards about cards: the fleet, and a node with its cards."""

from monitoring.boards.panels import Board, Query, Variable, bars, chart, number, stack

_NODE = Variable("node", "tessera_gpu_info", "node")
_GPU = Variable("gpu", 'tessera_gpu_info{node=~"$node"}', "gpu")
_CARD = '{node=~"$node", gpu=~"$gpu"}'
_PER_CARD = "{{node}} {{gpu}}"
_CARDS = "count(count by (gpu) (tessera_gpu_info))"


def _card(series: str, aggregate: str = "") -> str:
    return f"{aggregate}({series}{_CARD})" if aggregate else f"{series}{_CARD}"


FLEET = Board(
    "tessera-fleet",
    "Tessera: fleet",
    "All cards of the cluster: how many, how much of them is held, how much of them computes.",
    (),
    [
        (
            "Now",
            [
                number("Nodes with cards", "none", "count(count by (node) (tessera_gpu_info))"),
                number("Cards", "none", _CARDS),
                number("Cards with a fault", "none", "sum(max by (gpu) (tessera_gpu_health) > bool 0)"),
                number("Held", "percentunit", f"sum(tessera_pod_gpu_share_ratio) / {_CARDS}"),
                number(
                    "Busy",
                    "percentunit",
                    "avg(tessera:gpu_busy:ratio)",
                    meaning="Mean of the cards whose activity can be measured.",
                ),
                number("Power", "watt", "sum(tessera:gpu_power:watts)"),
                number("Waiting pods", "none", "sum(tessera_pods_waiting)"),
                number("Oldest wait", "s", "max(tessera_oldest_wait_seconds)"),
                number("Slots held", "percentunit", "avg(tessera:slots_held:ratio)"),
                number("Agents that answer", "none", 'sum(up{job="tessera-agent"})'),
                number("Controllers that lead", "none", "sum(tessera_leading)"),
                number(
                    "Alerts",
                    "none",
                    'count(ALERTS{alertname=~"Tessera.*", alertstate="firing"})',
                    absent="Prometheus has the series only while an alert fires",
                ),
            ],
        ),
        (
            "Use",
            [
                stack(
                    "Cards held and computing",
                    "none",
                    Query("sum(tessera:namespace_gpu_busy:sum)", "compute"),
                    Query("sum(tessera:namespace_gpu_share:sum) - sum(tessera:namespace_gpu_busy:sum)", "held only"),
                    meaning="In parts of cards. Holders whose activity cannot be measured count as held only.",
                ),
                chart("Busy by node", "percentunit", Query("avg by (node) (tessera:gpu_busy:ratio)", "{{node}}")),
                stack("Cards by model", "none", Query("count by (model) (tessera_gpu_info)", "{{model}}")),
                stack("Power by node", "watt", Query("sum by (node) (tessera:gpu_power:watts)", "{{node}}")),
                chart(
                    "Memory used by node",
                    "percentunit",
                    Query(
                        "sum by (node) (tessera:gpu_memory_used:bytes) / sum by (node) (tessera:gpu_memory_size:bytes)",
                        "{{node}}",
                    ),
                ),
                chart(
                    "Need of cards",
                    "none",
                    Query("max by (node, gpu) (tessera_gpu_health)", _PER_CARD),
                    meaning="0 nothing, 1 attention, 2 withheld, 3 a reset, 4 a reboot.",
                ),
            ],
        ),
    ],
)

#: The eight charts of NVIDIA's board 12239, and what Tessera measures beside them.
CARD = Board(
    "tessera-card",
    "Tessera: node and card",
    "What the cards of a node do. A quantity that a card does not report is n/a, and the last row says why.",
    (_NODE, _GPU),
    [
        (
            "As on NVIDIA's board",
            [
                chart("Temperature", "celsius", Query(_card("tessera:gpu_temperature:celsius"), _PER_CARD)),
                number("Mean temperature", "celsius", _card("tessera:gpu_temperature:celsius", "avg")),
                number("Power in all", "watt", _card("tessera:gpu_power:watts", "sum")),
                number(
                    "Energy",
                    "joule",
                    f"sum(avg_over_time(tessera:gpu_energy_joules:rate5m{_CARD}[$__range])) * $__range_s",
                    meaning="In the time that the board shows.",
                ),
                chart("Power", "watt", Query(_card("tessera:gpu_power:watts"), _PER_CARD)),
                chart("SM clock", "hertz", Query(_card("tessera:gpu_sm_clock:hertz"), _PER_CARD)),
                chart(
                    "Utilization",
                    "percentunit",
                    Query(_card("tessera:gpu_busy:ratio"), _PER_CARD),
                    meaning="Share of time in which the card computed; in MIG mode the sum of its devices by size.",
                ),
                chart("Tensor cores", "percentunit", Query(_card("tessera:gpu_tensor:ratio"), _PER_CARD)),
                chart("Framebuffer used", "bytes", Query(_card("tessera:gpu_memory_used:bytes"), _PER_CARD)),
            ],
        ),
        (
            "Activity and memory",
            [
                chart(
                    "SMs",
                    "percentunit",
                    Query(_card("tessera:gpu_sm:ratio"), _PER_CARD),
                    meaning="NVIDIA: 0.8 or more is good use, less than 0.5 is probably ineffective.",
                ),
                chart("Memory traffic", "percentunit", Query(_card("tessera:gpu_dram:ratio"), _PER_CARD)),
                chart("Memory used", "percentunit", Query(_card("tessera:gpu_memory_used:ratio"), _PER_CARD)),
                chart(
                    "Memory temperature", "celsius", Query(_card("tessera:gpu_memory_temperature:celsius"), _PER_CARD)
                ),
                chart(
                    "MIG devices: activity",
                    "percentunit",
                    Query(_card("tessera:mig_busy:ratio"), "{{gpu}} {{profile}} {{device}}"),
                ),
                chart(
                    "MIG devices: memory used",
                    "percentunit",
                    Query(_card("tessera:mig_memory_used:ratio"), "{{gpu}} {{profile}} {{device}}"),
                ),
                chart(
                    "PCIe",
                    "Bps",
                    Query(_card("tessera_gpu_pcie_transmitted_bytes_per_second"), f"{_PER_CARD} sent"),
                    Query(_card("tessera_gpu_pcie_received_bytes_per_second"), f"{_PER_CARD} received"),
                ),
                chart(
                    "NVLink",
                    "Bps",
                    Query(
                        f"rate(tessera_gpu_nvlink_transmitted_bytes_total{_CARD}[$__rate_interval])",
                        f"{_PER_CARD} sent",
                    ),
                    Query(
                        f"rate(tessera_gpu_nvlink_received_bytes_total{_CARD}[$__rate_interval])",
                        f"{_PER_CARD} received",
                    ),
                ),
            ],
        ),
        (
            "Health",
            [
                chart(
                    "Slowed down now",
                    "none",
                    Query(f"max by (node, gpu, reason) (tessera_gpu_throttled{_CARD})", f"{_PER_CARD} {{{{reason}}}}"),
                ),
                chart(
                    "Time slowed down",
                    "percentunit",
                    Query(_card("tessera:gpu_throttled_power:rate5m"), f"{_PER_CARD} power"),
                    Query(_card("tessera:gpu_throttled_thermal:rate5m"), f"{_PER_CARD} heat"),
                ),
                chart(
                    "Memory errors",
                    "none",
                    Query(_card("tessera_gpu_ecc_corrected_errors_total"), f"{_PER_CARD} corrected"),
                    Query(_card("tessera_gpu_ecc_uncorrected_errors_total"), f"{_PER_CARD} uncorrected"),
                ),
                chart(
                    "Remapped rows",
                    "none",
                    Query(_card("tessera_gpu_remapped_correctable_rows_total"), f"{_PER_CARD} correctable"),
                    Query(_card("tessera_gpu_remapped_uncorrectable_rows_total"), f"{_PER_CARD} uncorrectable"),
                    Query(_card("tessera_gpu_row_remap_pending"), f"{_PER_CARD} pending"),
                ),
                chart("Last XID", "none", Query(_card("tessera_gpu_last_xid"), _PER_CARD)),
                chart(
                    "Degrees left until the card slows itself down",
                    "celsius",
                    Query(
                        f"tessera:gpu_slowdown_temperature:celsius{_CARD} "
                        f"- on (node, gpu) tessera:gpu_temperature:celsius{_CARD}",
                        _PER_CARD,
                    ),
                    meaning="Cards that do not report their limit are missing.",
                ),
                bars(
                    "Devices without a quantity",
                    "none",
                    Query(
                        'sum by (metric, reason) (tessera_metric_unavailable{node=~"$node"})', "{{metric}}: {{reason}}"
                    ),
                ),
            ],
        ),
    ],
)
