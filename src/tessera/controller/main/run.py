"""The controller process: election, HTTP endpoints, and one term of leadership after another."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from prometheus_client import generate_latest

from tessera.access.page_guard import PageGuard
from tessera.access.page_tokens import CONTROLLER_AUDIENCE
from tessera.access.reviewer import Reviewer
from tessera.api.nodes.silence import SilentNode
from tessera.clock import Clock
from tessera.controller.base import ControllerMetrics
from tessera.controller.health.silent_agents import SilenceCollector
from tessera.controller.leadership.leader_session import LeaderSession
from tessera.controller.leadership.satellite import ControllerOptions, Process, Term
from tessera.controller.main.fleet_metrics import FleetCollector
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.planning.proposals import Proposer
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.client.client import Client
from tessera.kube.leader_election import LeaderElector
from tessera.kube.runtime import KubeRuntime
from tessera.replay.service import Recorders, serve_records
from tessera.serving.status_server import serve_status


async def run(
    options: ControllerOptions,
    client: Client,
    clock: Clock,
    *,
    rng: random.Random | None = None,
) -> None:
    """Runs one replica until cancelled. The process may be killed at any moment and started again.

    Args:
        options: the controller's options.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the controller.
        clock: gives the time.
        rng: for jitter and the identity's random part; seeded in tests.

    Raises:
        ExceptionGroup: a part failed, and only a restart of the process can repair it.
    """
    await Controller(options, client, clock, rng=rng or random.Random()).run()


class Controller:
    """One replica; a :class:`~tessera.status_pages.ProcessStatus`.

    Attributes:
        metrics: this replica's metrics.
        slicer: the state machine of the current term of leadership; None while another replica leads.
    """

    def __init__(self, options: ControllerOptions, client: Client, clock: Clock, *, rng: random.Random) -> None:
        self.metrics = ControllerMetrics()
        self.slicer: Slicer | None = None
        self._options = options
        self._recorders = Recorders(options.record)
        self._client = client
        self._clock = clock
        self._rng = rng
        self._unready_reason = "the election has not begun"
        #: The satellites of this process; each joins a term of leadership.
        self._joins: Sequence[Callable[[Term], None]] = ()
        #: Make the kinds of requests that they add, and the proposers.
        self._kinds: Sequence[Callable[[SlicerState], RequestKind]] = ()
        self._proposers: Sequence[Callable[[SlicerState], Sequence[Proposer]]] = ()
        #: The present term of leadership; None while another replica leads.
        self._session: LeaderSession | None = None
        self.metrics.registry.register(FleetCollector(lambda: self.slicer, clock))
        self.metrics.registry.register(SilenceCollector(self._silent))

    def _silent(self) -> Mapping[str, SilentNode]:
        return self._session.silent_agents.silent if self._session else {}

    def metrics_text(self) -> bytes:
        """See :meth:`~tessera.status_pages.ProcessStatus.metrics_text`."""
        return generate_latest(self.metrics.registry)

    def unready_reason(self) -> str:
        """See :meth:`~tessera.status_pages.ProcessStatus.unready_reason`."""
        return self._unready_reason

    async def run(self) -> None:
        """Takes part in the election, and decides while this replica leads, until cancelled."""
        options = self._options
        process = Process(client=self._client, clock=self._clock, rng=self._rng, registry=self.metrics.registry)
        async with AsyncExitStack() as stack:
            self._joins = [await stack.enter_async_context(each.open(process)) for each in options.satellites]
            self._kinds, self._proposers = process.kinds, process.proposers
            group = await stack.enter_async_context(asyncio.TaskGroup())
            if options.http_port is not None:
                group.create_task(
                    serve_status(
                        self,
                        options.http_port,
                        address=options.http_address,
                        on_listening=options.on_listening,
                        documents=process.pages,
                        guard=PageGuard(
                            Reviewer(self._client),
                            self._clock,
                            audience=CONTROLLER_AUDIENCE,
                            open_metrics=options.open_metrics,
                        ),
                    )
                )
            group.create_task(serve_records(self._recorders, options.record_socket))
            self._unready_reason = ""
            if options.leader_election:
                elector = self._elector()
                await elector.run(partial(self._lead_session, partial(getattr, elector, "is_leader")))
            else:
                await self._lead_session(_always)

    def _elector(self) -> LeaderElector:
        return LeaderElector(
            self._client,
            namespace=self._options.namespace,
            name=self._options.lease_name,
            identity=f"{self._options.identity}_{self._rng.getrandbits(32):08x}",
            clock=self._clock,
            rng=self._rng,
        )

    async def _lead_session(self, may_act: Callable[[], bool]) -> None:
        self.metrics.set_leading(leads=True)
        if self._options.on_leading is not None:
            self._options.on_leading()
        try:
            runtime = KubeRuntime(
                client=self._client, clock=self._clock, rng=self._rng, may_act=may_act, recorders=self._recorders
            )
            self._session = LeaderSession(
                self._options,
                runtime,
                metrics=self.metrics,
                joins=self._joins,
                kinds=self._kinds,
                proposers=self._proposers,
            )
            await self._session.run(self._set_slicer)
        finally:
            self._session = None
            self.slicer = None
            self.metrics.set_leading(leads=False)

    def _set_slicer(self, slicer: Slicer) -> None:
        self.slicer = slicer
        self._recorders.attach("slicer", slicer)


def _always() -> bool:
    """The only replica may always act."""
    return True
