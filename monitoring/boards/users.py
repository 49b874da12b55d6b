"""Boards about the use of cards: layout and sharing, namespace and user."""

from monitoring.boards.panels import Board, Query, Variable, bars, chart, number, stack

_NODE = Variable("node", "tessera_gpu_info", "node")
_NAMESPACE = Variable("namespace", "tessera_pod_gpu_share_ratio", "namespace")
_POD = '{namespace=~"$namespace"}'
_PER_CARD = "{{node}} {{gpu}}"
_PER_POD = "{{namespace}}/{{pod}}"

SHARING = Board(
    "tessera-sharing",
    "Tessera: layout and sharing",
    "How cards are cut and shared, how much room is left, and how scattered it is.",
    (_NODE,),
    [
        (
            "Room",
            [
                stack("Memory slots", "none", Query("sum by (model, state) (tessera_slots)", "{{model}} {{state}}")),
                chart(
                    "Room for one more slice",
                    "none",
                    Query("max by (model, profile) (tessera_free_slices)", "{{model}} {{profile}}"),
                    meaning="Cards on which one more slice of the profile can be made now.",
                ),
                chart(
                    "Fragmentation",
                    "percentunit",
                    Query("max by (model) (tessera_fragmentation_ratio)", "{{model}}"),
                    meaning="Share of the slots that are free and that a random profile could not use.",
                ),
                stack(
                    "Slices on demand",
                    "none",
                    Query('sum by (state) (tessera_slices{node=~"$node"})', "{{state}}"),
                ),
            ],
        ),
        (
            "Layout",
            [
                stack(
                    "MIG devices by profile",
                    "none",
                    Query('count by (profile) (tessera:mig_memory_size:bytes{node=~"$node"})', "{{profile}}"),
                ),
                chart(
                    "Cut part of cards in MIG mode",
                    "percentunit",
                    Query('sum by (node, gpu) (tessera:mig_size:ratio{node=~"$node"})', _PER_CARD),
                ),
                chart(
                    "Duration of changes (p95)",
                    "s",
                    Query(
                        "histogram_quantile(0.95, sum by (le, call) "
                        '(rate(tessera_mig_call_seconds_bucket{node=~"$node"}[$__rate_interval])))',
                        "{{call}}",
                    ),
                ),
                chart(
                    "Failed changes",
                    "none",
                    Query(
                        "sum by (call, error) "
                        '(increase(tessera_mig_call_failures_total{node=~"$node"}[$__rate_interval]))',
                        "{{call}} {{error}}",
                        "the series begins with the first failed call",
                    ),
                ),
            ],
        ),
        (
            "Sharing",
            [
                stack(
                    "Held cards by kind",
                    "none",
                    Query('sum by (kind) (tessera_pod_gpu_share_ratio{node=~"$node"})', "{{kind}}"),
                    meaning="In parts of cards.",
                ),
                chart(
                    "Containers on one device",
                    "none",
                    Query(
                        'count by (node, gpu, device) (tessera_pod_gpu_share_ratio{node=~"$node"})',
                        "{{node}} {{device}}",
                    ),
                ),
                chart(
                    "Memory of a share's limit",
                    "percentunit",
                    Query(
                        'tessera_memory_used_bytes{node=~"$node"} / (tessera_memory_limit_bytes{node=~"$node"} > 0)',
                        _PER_POD,
                    ),
                ),
                chart(
                    "Memory that no pod is proven to hold",
                    "bytes",
                    Query('sum by (node, gpu) (tessera_memory_unattributed_bytes{node=~"$node"})', _PER_CARD),
                ),
                chart(
                    "Decisions about memory",
                    "none",
                    Query(
                        "sum by (action, outcome) "
                        '(increase(tessera_memory_decisions_total{node=~"$node"}[$__rate_interval]))',
                        "{{action}} {{outcome}}",
                        "the series begins with the first decision",
                    ),
                ),
            ],
        ),
    ],
)

NAMESPACE = Board(
    "tessera-namespace",
    "Tessera: namespace and user",
    "What each namespace and each of its pods holds, uses, and does not use. In parts of cards.",
    (_NAMESPACE,),
    [
        (
            "Namespaces",
            [
                stack("Held", "none", Query(f"tessera:namespace_gpu_share:sum{_POD}", "{{namespace}}")),
                stack("Computing", "none", Query(f"tessera:namespace_gpu_busy:sum{_POD}", "{{namespace}}")),
                stack(
                    "Held and not used",
                    "none",
                    Query(f"tessera:namespace_gpu_wasted:rate5m{_POD}", "{{namespace}}"),
                    meaning="Leases in the states never_used, idle and resident.",
                ),
                stack("Charged to quotas", "bytes", Query(f"tessera_quota_used_bytes{_POD}", "{{namespace}}")),
                chart(
                    "Charged part of the capacity",
                    "percentunit",
                    Query("sum(tessera_quota_used_bytes) / sum(tessera_quota_capacity_bytes)", "all namespaces"),
                ),
                bars(
                    "GPU hours not used",
                    "none",
                    Query(
                        f"sum by (namespace) (increase(tessera_pod_gpu_wasted_seconds_total{_POD}[$__range])) / 3600",
                        "{{namespace}}",
                    ),
                    meaning="In the time that the board shows.",
                ),
            ],
        ),
        (
            "Pods",
            [
                stack(
                    "Leases by state",
                    "none",
                    Query(f"sum by (state) (tessera_pod_gpu_state{_POD})", "{{state}}"),
                ),
                chart(
                    "Busy",
                    "percentunit",
                    Query(f"max by (namespace, pod, container, device) (tessera_pod_gpu_busy_ratio{_POD})", _PER_POD),
                    meaning="Share of time in which the pod's device computed for it.",
                ),
                chart(
                    "Memory",
                    "bytes",
                    Query(f"sum by (namespace, pod) (tessera_pod_gpu_memory_used_bytes{_POD})", _PER_POD),
                ),
                chart(
                    "Held part of cards",
                    "none",
                    Query(f"sum by (namespace, pod) (tessera_pod_gpu_share_ratio{_POD})", _PER_POD),
                ),
                bars(
                    "GPU hours not used by pod",
                    "none",
                    Query(
                        "topk(20, sum by (namespace, pod) "
                        f"(increase(tessera_pod_gpu_wasted_seconds_total{_POD}[$__range]))) / 3600",
                        _PER_POD,
                    ),
                ),
                number(
                    "Leases without series",
                    "none",
                    "sum(tessera_pod_series_cut)",
                    meaning="Leases above the limit of the agent's option --max-series; they are missing here.",
                ),
            ],
        ),
    ],
)
