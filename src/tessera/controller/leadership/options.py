"""Options of the controller process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.controller.base.settings import BreakerLimits, MoveSettings
from tessera.controller.leadership.satellite import Satellite
from tessera.replay.service import SOCKET
from tessera.status_pages import OnListening

#: Seconds that a pod waits for room before slots are reserved for it; a slice goes from pod to pod in a few seconds.
RESERVE_AFTER = 60.0


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
        breaker: the most cards that one rule of health takes away.
        reserve_after: seconds that a pod waits for room before slots are reserved for it; None reserves none.
        preempt: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves.
        satellites: what runs beside the core; see :mod:`tessera.controller.leadership.satellite`.
    """

    identity: str
    namespace: str = SYSTEM_NAMESPACE
    lease_name: str = "tessera-controller"
    leader_election: bool = True
    http_address: str | None = None
    http_port: int | None = 8080
    open_metrics: bool = False
    on_listening: OnListening | None = None
    on_leading: Callable[[], None] | None = None
    record: int = 0
    record_socket: str = SOCKET
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    reserve_after: float | None = RESERVE_AFTER
    preempt: bool = False
    moves: MoveSettings = field(default_factory=MoveSettings)
    satellites: Sequence[Satellite] = ()
