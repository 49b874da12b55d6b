"""Options of the controller process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tessera.controller.base.move_settings import MoveSettings
from tessera.driver.run import DriverOptions
from tessera.provisioning.options import ProvisioningOptions
from tessera.replay.service import SOCKET
from tessera.status_pages import OnListening
from tessera.usage.recorder import UsageOptions

#: Seconds that a pod waits for room before slots are reserved for it; a slice goes from pod to pod in a few seconds.
RESERVE_AFTER = 60.0


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """Options of the access to registries of driver images.

    Attributes:
        ca: PEM certificates of the authorities that are trusted beside the system's.
        plain_http: hosts (with port) that the controller asks without TLS.
    """

    ca: Path | None = None
    plain_http: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BreakerLimits:
    """The bound of a rule.

    Attributes:
        share: of all cards, 0 to 1; with 1 the breaker never opens.
        cards: number of cards that a rule may always take away.
    """

    share: float = 0.1
    cards: int = 3

    def bound(self, counts: Iterable[int]) -> int:
        """The most cards that one rule takes away; ``counts`` are the cards of each node."""
        found = list(counts)
        return max(self.cards, int(self.share * sum(found)), max(found, default=0))


class ScaleUpMethod(Enum):
    """How new nodes are asked for."""

    OFF = "off"
    PLACEHOLDER = "placeholder"
    PROVISIONING_REQUEST = "provisioning-request"
    #: ProvisioningRequests where the cluster serves them and an autoscaler accepts them, else placeholders.
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ScaleUpOptions:
    """Options of the search for new nodes.

    Attributes:
        method: how new nodes are asked for; without groups in the file nothing is asked for.
        image: image that placeholders name; it is never pulled.
    """

    method: ScaleUpMethod = ScaleUpMethod.AUTO
    image: str = "registry.k8s.io/pause:3.10"


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Options of :func:`tessera.controller.main.run.run`.

    Attributes:
        identity: name of this replica in the Lease, unique in the cluster: the pod's name.
        namespace: namespace of the Lease, the deployment's.
        lease_name: name of the Lease that names the leader.
        leader_election: False lets this process act at once; only for a single replica that nothing restarts in
            parallel.
        http_address: address that serves ``/metrics``, ``/healthz`` and ``/readyz``; None for all addresses, IPv6 too.
        http_port: None serves nothing (no sockets are opened), 0 picks a free port.
        open_metrics: True to show ``/metrics`` to readers without a token.
        on_listening: called with the address and port once the port is open.
        on_leading: called when this replica begins to act.
        record: decisions to keep of each decider, for ``tessera debug record``; 0 keeps none.
        record_socket: name of the socket that serves the records.
        drivers: the management of drivers, which a ClusterPolicy turns on.
        registries: access to the registries of driver images.
        provisioning: the observation of starting nodes.
        breaker: the most cards that one rule of health takes away.
        usage: the count of GPU-hours.
        reserve_after: seconds that a pod waits for room before slots are reserved for it; None reserves none.
        preempt: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves.
        scale_up: how autoscalers are asked for new nodes.
    """

    identity: str
    namespace: str = "tessera-system"
    lease_name: str = "tessera-controller"
    leader_election: bool = True
    http_address: str | None = None
    http_port: int | None = 8080
    open_metrics: bool = False
    on_listening: OnListening | None = None
    on_leading: Callable[[], None] | None = None
    record: int = 0
    record_socket: str = SOCKET
    drivers: DriverOptions = field(default_factory=DriverOptions)
    registries: RegistryOptions = field(default_factory=RegistryOptions)
    provisioning: ProvisioningOptions = field(default_factory=ProvisioningOptions)
    breaker: BreakerLimits = BreakerLimits()
    usage: UsageOptions = field(default_factory=UsageOptions)
    reserve_after: float | None = RESERVE_AFTER
    preempt: bool = False
    moves: MoveSettings = field(default_factory=MoveSettings)
    scale_up: ScaleUpOptions = ScaleUpOptions()
