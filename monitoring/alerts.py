"""Alerts on Tessera's series, on the recorded ones, and on the conditions of nodes.

Each alert waits for ``hold``, so that one bad sample or a restart of a pod is no alert. Its description begins with the
command to run. Its page ``docs/runbooks/NAME.md`` says what it means, how to look, and what to do. Conditions come from
kube-state-metrics, ``up`` from Prometheus itself.
"""

from typing import Any

import msgspec

#: Slowdowns that a site can end. The others are normal: an idle card, a power limit, clocks that somebody has set.
_SLOWDOWNS = "hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"
#: Degrees Celsius below the temperature at which a card slows itself down.
_NEAR = 3
#: Degrees Celsius, for cards that report no limits. Data-center cards slow down from about 87 on (NVIDIA's data sheets
#: of A100 and H100: GPU 85 to 90, memory 95).
HOT, HOT_MEMORY = 85, 95
#: A card is hot near its own limit, or beyond its normal operation, or beyond the numbers above.
_IS_HOT = f"""\
tessera:gpu_temperature:celsius > on (node, gpu) (tessera:gpu_slowdown_temperature:celsius - {_NEAR})
or tessera:gpu_temperature_margin:celsius < 0
or tessera:gpu_memory_temperature:celsius > on (node, gpu) tessera:gpu_memory_temperature_limit:celsius
or (tessera:gpu_temperature:celsius unless on (gpu) tessera:gpu_slowdown_temperature:celsius) > {HOT}
or (tessera:gpu_memory_temperature:celsius unless on (gpu) tessera:gpu_memory_temperature_limit:celsius)
  > {HOT_MEMORY}"""
#: The need of a card. The series of an agent ends with its pod, so an update would resolve an alert for a while; the
#: last value of either pod holds for the time that the next agent needs to start.
_HEALTH = "max by (node, gpu) (last_over_time(tessera_gpu_health[5m]))"
#: Lost or replaced nodes in an hour that are a loop and no accident.
_LOOP = 3


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert.

    Attributes:
        name: its name, and that of its page.
        expr: true for each object that has the problem.
        hold: how long that must be so.
        severity: ``info``: somebody may save money; ``warning``: look today; ``critical``: look now.
        summary: one sentence with the object's name.
        description: what to run.
    """

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str

    def rule(self, runbooks: str) -> dict[str, Any]:
        """Returns the rule for Prometheus; ``runbooks`` is the folder with the pages."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{runbooks}/{self.name}.md",
            },
        }


_CARDS = (
    Alert(
        name="TesseraGpuUnhealthy",
        # A card that is only slowed down has an alert of its own. The window is longer than the quiet time of a fault.
        expr=f"{_HEALTH} > 0 < 4\nunless on (node, gpu) ({_HEALTH} == 1\n"
        f'and on (node, gpu) max_over_time(tessera_gpu_throttled{{reason=~"{_SLOWDOWNS}"}}[20m]) > 0)',
        hold="5m",
        severity="warning",
        summary="Card {{ $labels.gpu }} of node {{ $labels.node }} has a hardware fault.",
        description="Run: tessera why node/{{ $labels.node }}",
    ),
    Alert(
        name="TesseraCardNeedsReboot",
        expr=f"{_HEALTH} >= 4",
        hold="5m",
        severity="warning",
        summary="Card {{ $labels.gpu }} of node {{ $labels.node }} is not allocated until its node was rebooted.",
        description="Run: tessera why node/{{ $labels.node }}, then drain and reboot the node.",
    ),
    Alert(
        name="TesseraHealthBreakerOpen",
        expr='max by (rule) (max_over_time(tessera_breaker_cards{state="spared"}[10m])) > 0',
        hold="1m",
        severity="critical",
        summary="More cards report {{ $labels.rule }} than it may take away: the others stay allocated.",
        description="Run: tessera health, then find out whether the cards or the reports are wrong.",
    ),
    Alert(
        name="TesseraGpuThrottled",
        expr=f'max by (node, gpu, reason) (avg_over_time(tessera_gpu_throttled{{reason=~"{_SLOWDOWNS}"}}[15m])) > 0.5',
        hold="5m",
        severity="warning",
        summary="Card {{ $labels.gpu }} of node {{ $labels.node }} is slowed down: {{ $labels.reason }}.",
        description="Run: kubectl describe node {{ $labels.node }}, then look at the node's fans, air and power.",
    ),
    Alert(
        name="TesseraGpuHot",
        expr=_IS_HOT,
        hold="10m",
        severity="warning",
        summary="Card {{ $labels.gpu }} of node {{ $labels.node }} is hot: near the limit of the card.",
        description="Run: tessera top --node {{ $labels.node }} --by cards, then look at the node's fans and air.",
    ),
    Alert(
        name="TesseraGpuMemoryNearlyFull",
        expr="(tessera:gpu_memory_used:ratio unless on (gpu) tessera:mig_size:ratio) > 0.97\n"
        "or tessera:mig_memory_used:ratio > 0.97",
        hold="10m",
        severity="info",
        summary="The memory of card {{ $labels.gpu }} {{ $labels.profile }} of node {{ $labels.node }} is nearly full.",
        description="Run: tessera map, then tessera why POD for its pods.",
    ),
    Alert(
        name="TesseraPodMemoryNearLimit",
        expr="tessera_memory_used_bytes / (tessera_memory_limit_bytes > 0) > 0.95",
        hold="5m",
        severity="warning",
        summary="Pod {{ $labels.namespace }}/{{ $labels.pod }} uses nearly all of its memory of a shared card.",
        description="Run: tessera why {{ $labels.pod }} -n {{ $labels.namespace }}",
    ),
    Alert(
        name="TesseraGpuIdleButHeld",
        expr="max by (namespace, pod, container, gpu, kind, state) "
        '(tessera_pod_gpu_state{state=~"never_used|idle|resident"}) == 1',
        hold="2h",
        severity="info",
        summary="Pod {{ $labels.namespace }}/{{ $labels.pod }} holds a GPU and does not use it: {{ $labels.state }}.",
        description="Run: kubectl describe pod {{ $labels.pod }} -n {{ $labels.namespace }}, then ask its owner.",
    ),
)

_AGENTS = (
    Alert(
        name="TesseraAgentSilent",
        expr='max by (node, reason) (tessera_silent_nodes{reason!~"waits|leaving"}) > 0\n'
        'or up{job="tessera-agent"} == 0\n'
        "or time() - max by (job, instance, node) (tessera_sample_timestamp_seconds) > 120",
        hold="5m",
        severity="critical",
        summary="The agent of node {{ $labels.node }} does not answer, or does not measure.",
        description="Run: kubectl get pods -n tessera-system -o wide, then kubectl logs for the agent of the node.",
    ),
    Alert(
        name="TesseraConditionFalse",
        expr='kube_node_status_condition{condition=~"Gpu.*", status="false"} == 1',
        hold="15m",
        severity="warning",
        summary="Condition {{ $labels.condition }} of node {{ $labels.node }} is False.",
        description="Run: tessera why node/{{ $labels.node }}",
    ),
    Alert(
        name="TesseraContainersWithoutSlice",
        expr='sum by (node, instance) (increase(tessera_claim_seconds_count{outcome="refused"}[15m])) > 0',
        hold="1m",
        severity="warning",
        summary="Containers on node {{ $labels.node }} did not get their slices.",
        description="Run: kubectl get events --all-namespaces --field-selector reason=Failed",
    ),
)

_QUEUE = (
    Alert(
        name="TesseraNoLeader",
        expr="(sum(tessera_leading) or vector(0)) < 1",
        hold="5m",
        severity="critical",
        summary="No controller leads, so pods get no slices and drivers do not change.",
        description="Run: kubectl logs -n tessera-system deployment/tessera-controller",
    ),
    Alert(
        name="TesseraPodStarving",
        expr="max(tessera_oldest_wait_seconds) > 1800",
        hold="5m",
        severity="warning",
        summary="A pod has waited for a slice for more than 30 minutes.",
        description="Run: kubectl get pods -A --field-selector status.phase=Pending, then tessera why POD.",
    ),
    Alert(
        name="TesseraFragmented",
        expr='max(tessera_pods_waiting{reason="fragmented"}) > 0',
        hold="15m",
        severity="warning",
        summary="Pods wait although enough memory slots are free, because the free slots are scattered.",
        description="Run: tessera map, then tessera why POD.",
    ),
)

_NODES = (
    Alert(
        name="TesseraNodesOverdue",
        expr="sum by (reason) (increase(tessera_startup_overdue_nodes_total[1h])) > 0",
        hold="1m",
        severity="warning",
        summary="A new node's cards could not be used by its deadline: {{ $labels.reason }}.",
        description="Run: tessera provisioning report, and tessera why node/NODE.",
    ),
    Alert(
        name="TesseraProvisioningLoop",
        expr=f"sum(increase(tessera_provisioning_lost_nodes_total[1h])) >= {_LOOP}\n"
        f"or sum(increase(tessera_replaced_nodes_total[1h])) >= {_LOOP}",
        hold="5m",
        severity="critical",
        summary="New nodes go away again before their cards can be used.",
        description="Run: tessera provisioning report, then tessera autoscaler advise.",
    ),
    Alert(
        name="TesseraDriverRolloutStopped",
        expr="max by (policy) (tessera_driver_rollout_stopped) == 1",
        hold="1m",
        severity="warning",
        summary="The driver rollout of policy {{ $labels.policy }} used up its failure budget.",
        description="Run: kubectl get events --all-namespaces --field-selector reason=DriverRolledBack",
    ),
    Alert(
        name="TesseraNextKernelWithoutDriver",
        expr="max by (pool, kernel) (tessera_driver_next_kernel_covered) == 0",
        hold="1h",
        severity="warning",
        summary="No driver image for kernel {{ $labels.kernel }}, the next one of {{ $labels.pool }}.",
        description="Run: tessera driver coverage --cluster, then tessera driver build or mirror.",
    ),
)

#: All alerts.
ALERTS = (*_CARDS, *_AGENTS, *_QUEUE, *_NODES)
