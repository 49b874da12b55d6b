"""Boards about what happens before a card is used: waiting, time to a GPU, drivers."""

from collections.abc import Iterator

from monitoring.boards.panels import Board, Query, Variable, bars, chart, number, stack

_POOL = Variable("pool", "tessera_provisioning_phase_seconds_count", "pool")
_PHASE = 'tessera_provisioning_phase_seconds_bucket{{pool=~"$pool", phase{phase}}}[$__range]'
_TOTALS = "total|total-provisioned|total-startup|total-ready-to-workload|total-labelled-to-allocatable"


def _quantile(share: float, by: str, window: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (increase({window})))"


def _phases(share: float, match: str, by: str = "phase") -> str:
    return _quantile(share, by, _PHASE.format(phase=match))


def _steps(share: float) -> str:
    return _quantile(share, "step, node", "tessera_provisioning_workload_seconds_bucket[$__range]")


def _shares(histogram: str) -> Iterator[Query]:
    """The median and the 99th percentile."""
    for share in (0.5, 0.99):
        expr = f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket[$__rate_interval])))"
        yield Query(expr, f"p{share * 100:.0f}")


WAITING = Board(
    "tessera-waiting",
    "Tessera: hand-over and waiting",
    "Pods that wait for slices, and how fast free slots reach them.",
    (),
    [
        (
            "Pods",
            [
                stack("Waiting pods", "none", Query("max by (reason) (tessera_pods_waiting)", "{{reason}}")),
                chart("Oldest wait", "s", Query("max(tessera_oldest_wait_seconds)", "oldest")),
                chart("Pods that got slices", "cps", Query("sum(rate(tessera_decisions_total[$__rate_interval]))")),
                chart("Promised slices", "none", Query("max(tessera_slices_promised)", "promised")),
                stack(
                    "Slices by profile",
                    "none",
                    Query("sum by (profile, state) (tessera_allocated_slices)", "{{profile}} {{state}}"),
                ),
                chart(
                    "Pods that got other slices",
                    "none",
                    Query("sum(increase(tessera_moves_total[$__rate_interval]))", "moved"),
                ),
                chart(
                    "Moves that make room",
                    "none",
                    Query("sum by (outcome) (increase(tessera_room_moves_total[$__rate_interval]))", "{{outcome}}"),
                    Query("max(tessera_room_by_moves_pods)", "pods that could get room"),
                ),
                chart(
                    "Refusals by planning",
                    "none",
                    Query(
                        "sum by (reason) (increase(tessera_placement_refusals_total[$__rate_interval]))", "{{reason}}"
                    ),
                ),
                chart(
                    "Refusals at creation",
                    "none",
                    Query("sum by (rule) (increase(tessera_refusals_total[$__rate_interval]))", "{{rule}}"),
                ),
            ],
        ),
        (
            "Speed",
            [
                chart("Duration of a decision", "s", *_shares("tessera_decision_seconds")),
                chart("Hand-over of free slots to a waiting pod", "s", *_shares("tessera_handover_seconds")),
                chart("Wait from creation to slices", "s", *_shares("tessera_pod_wait_seconds")),
                chart(
                    "Wait of a container for its slices (p95)",
                    "s",
                    Query(
                        "histogram_quantile(0.95, "
                        "sum by (le, outcome) (rate(tessera_claim_seconds_bucket[$__rate_interval])))",
                        "{{outcome}}",
                    ),
                ),
                chart(
                    "Writes to the API server",
                    "wps",
                    Query("sum by (kind) (rate(tessera_api_writes_total[$__rate_interval]))", "{{kind}}"),
                ),
                chart(
                    "Failed writes",
                    "none",
                    Query(
                        "sum by (kind, error) (increase(tessera_api_write_failures_total[$__rate_interval]))",
                        "{{kind}} {{error}}",
                        "the series begins with the first failed write",
                    ),
                ),
                chart(
                    "Reviews of pods",
                    "reqps",
                    Query("sum by (verdict) (rate(tessera_reviews_total[$__rate_interval]))", "{{verdict}}"),
                ),
                chart(
                    "Duration of a review (p99)",
                    "s",
                    Query(
                        "histogram_quantile(0.99, sum by (le) (rate(tessera_review_seconds_bucket[$__rate_interval])))",
                        "p99",
                    ),
                ),
            ],
        ),
    ],
)

TIME_TO_GPU = Board(
    "tessera-time-to-gpu",
    "Tessera: time to a GPU",
    "From the request of a node to a card that a pod uses. Figures are of the nodes of the time that the board shows.",
    (_POOL,),
    [
        (
            "Nodes",
            [
                bars("Totals (p50)", "s", Query(_phases(0.5, f'=~"{_TOTALS}"'), "{{phase}}")),
                bars("Totals (p90)", "s", Query(_phases(0.9, f'=~"{_TOTALS}"'), "{{phase}}")),
                bars(
                    "Phases (p50)",
                    "s",
                    Query(_phases(0.5, '!~"total.*"'), "{{phase}}"),
                    meaning="An unknown phase is not counted, so the phases need not sum to the total.",
                ),
                bars("Phases (p90)", "s", Query(_phases(0.9, '!~"total.*"'), "{{phase}}")),
                bars(
                    "Total by strategy (p50)",
                    "s",
                    Query(_phases(0.5, '="total"', "strategy"), "{{strategy}}"),
                ),
                stack("Nodes that start", "none", Query("max(tessera_provisioning_nodes)", "nodes")),
            ],
        ),
        (
            "Pods",
            [
                bars("Steps of pods (p50)", "s", Query(_steps(0.5), "{{step}}, node {{node}}")),
                bars("Steps of pods (p90)", "s", Query(_steps(0.9), "{{step}}, node {{node}}")),
            ],
        ),
        (
            "Failures",
            [
                number(
                    "Lost nodes",
                    "none",
                    "sum(increase(tessera_provisioning_lost_nodes_total[$__range]))",
                    meaning="Nodes that went away before their cards could be used.",
                ),
                number("Replaced nodes", "none", "sum(increase(tessera_replaced_nodes_total[$__range]))"),
                number(
                    "Startup taints removed", "none", "sum(increase(tessera_startup_taints_removed_total[$__range]))"
                ),
                bars(
                    "Overdue nodes by reason",
                    "none",
                    Query(
                        "sum by (reason) (increase(tessera_startup_overdue_nodes_total[$__range]))",
                        "{{reason}}",
                    ),
                ),
            ],
        ),
    ],
)

DRIVERS = Board(
    "tessera-drivers",
    "Tessera: drivers",
    "Which drivers run, how their change goes on, and if the next kernels are covered.",
    (),
    [
        (
            "Now",
            [
                number("Stopped rollouts", "none", "sum(max by (policy) (tessera_driver_rollout_stopped))"),
                number(
                    "Next kernels without a driver",
                    "none",
                    "sum(max by (pool, kernel) (tessera_driver_next_kernel_covered) == bool 0)",
                ),
                number("Driver versions", "none", "count(count by (driver) (tessera_gpu_info))"),
            ],
        ),
        (
            "Change",
            [
                stack("Cards by driver", "none", Query("count by (driver) (tessera_gpu_info)", "{{driver}}")),
                stack(
                    "Nodes by state of the change",
                    "none",
                    Query("max by (policy, state) (tessera_driver_upgrades)", "{{policy}} {{state}}"),
                ),
                bars(
                    "Next kernels: 1 has a driver",
                    "none",
                    Query("max by (pool, kernel) (tessera_driver_next_kernel_covered)", "{{pool}} {{kernel}}"),
                ),
                chart(
                    "Conditions that are False",
                    "none",
                    Query(
                        'max by (node, condition) (kube_node_status_condition{condition=~"Gpu.*", status="false"}) > 0',
                        "{{node}} {{condition}}",
                        "kube-state-metrics shows the series, and only a False condition counts",
                    ),
                ),
            ],
        ),
    ],
)
