"""Scale-up as a satellite of the controller."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge

from tessera.api.nodes.node_cards import DISCOVERY_SECONDS
from tessera.controller.satellite import Process, Task, Term
from tessera.scale_up.node_requests import ScaleUpOptions
from tessera.scale_up.scale_up import ScaleUp


class NewNodeMetrics:
    """The new nodes that are asked for.

    Args:
        registry: the process's metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._new_nodes = Gauge(
            "tessera_requested_nodes",
            "New nodes that waiting pods need, asked of the autoscaler.",
            ["group"],
            registry=registry,
        )

    def show(self, counts: Mapping[str, int]) -> None:
        """Shows the new nodes that are asked for, by node group; none while another replica leads."""
        self._new_nodes.clear()
        for group, number in counts.items():
            self._new_nodes.labels(group).set(number)


@dataclass(frozen=True, kw_only=True)
class ScaleUpSatellite:
    """Asks autoscalers for new nodes.

    Attributes:
        options: see :class:`~tessera.scale_up.node_requests.ScaleUpOptions`.
        startup: seconds from a node's registration for which its cards are awaited.
    """

    options: ScaleUpOptions = field(default_factory=ScaleUpOptions)
    startup: float = DISCOVERY_SECONDS

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        metrics = NewNodeMetrics(process.registry)

        def join(term: Term) -> None:
            scale_up = ScaleUp(
                term.runtime,
                term.slicer,
                nodes=term.nodes,
                pods=term.pods,
                events=term.events,
                namespace=term.namespace,
                options=self.options,
                startup=self.startup,
                show=metrics.show,
            )
            term.may_bring_nodes.append(lambda: scale_up.nodes_may_come)
            term.tasks.append(Task(name="new nodes", run=scale_up.run))

        return join
