"""Follows the list of next kernels, looks up a driver image for each, and orders builds for those without one.

The list is the ConfigMap :data:`~tessera.driver.kernels.CONFIG_MAP`. Lookups go through the shared resolver,
so remembered answers cost no request. The result is written to an annotation of the ConfigMap. A lookup runs when the
list, the nodes or a build changes, and on a timer: every :data:`SOON` while an image is missing, since a person or a
pipeline may push it, else every :data:`LATE`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from tessera.clock import until_set
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.orders import BuildOrder, BuildSettings, UnbuildableError, order_for
from tessera.driver.build.states import BuildPhase
from tessera.driver.coverage import (
    CoverageReport,
    ExpectedKernel,
    KernelCoverage,
    expected_kernels,
    look_up_coverage,
)
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.driver.images import Resolver
from tessera.driver.kernels import CONFIG_MAP, parse_kernel_lists
from tessera.driver.node_facts import DriverNodeFacts
from tessera.driver.policies import PolicySelection
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.kube.errors import ApiError
from tessera.kube.informer import EventKind, ObjectInformer, WatchEvent
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, ConfigMap


class CoverageMetrics:
    """Metrics about kernels that nodes will run next.

    Args:
        registry: the process's metrics registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._covered = Gauge(
            "tessera_driver_next_kernel_covered",
            "1 if nodes of a pool get a driver image for a kernel that is to come.",
            ["pool", "kernel"],
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, report: CoverageReport) -> None:
        """Replaces all values by this report's. If two policies expect one kernel, both must be covered."""
        values: dict[tuple[str, str], bool] = {}
        for row in report.rows:
            labels = (row.group, row.pool.kernel)
            values[labels] = values.get(labels, True) and row.covered
        for labels in self._shown - values.keys():
            self._covered.remove(*labels)
        for labels, covered in values.items():
            self._covered.labels(*labels).set(int(covered))
        self._shown = set(values)


_log = logging.getLogger(__name__)

#: Annotation of the ConfigMap: the report, for tools that cannot query registries themselves.
COVERAGE_ANNOTATION = "tessera.dev/next-kernels-covered"
#: Characters of the annotation: people read it, and the metric has each kernel.
_NOTICE = 4_096
#: This module's name as a requester in :meth:`BuildJobs.set_orders`.
ASKER = "next kernels"

#: Seconds until the next lookup on a timer: while an image is missing, and while none is.
SOON = 60.0
LATE = 1800.0


class NextKernels:
    """Looks up driver images for the next kernels.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        resolver: looks up images in registries.
        in_use: returns the pools and policies in use; called at each lookup.
        builds: builds missing images.
        settings: settings of builds.
        metrics: shows the report.

    Attributes:
        report: the last one; empty before the first lookup.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        resolver: Resolver,
        in_use: Callable[[], "KernelsInUse"],
        builds: BuildJobs,
        settings: BuildSettings | None = None,
        metrics: CoverageMetrics,
    ) -> None:
        self.report = CoverageReport()
        self._client = runtime.client
        self._may_act = runtime.may_act
        self._resolver = resolver
        self._in_use = in_use
        self._builds = builds
        self._settings = settings
        self._metrics = metrics
        #: Set while a lookup is due: after a change of the list, of nodes, policies or builds.
        self._woken = asyncio.Event()
        #: Targets of builds that finished since the last lookup began. The next lookup queries the registry for them,
        #: and does not use a remembered answer.
        self._pushed: set[str] = set()
        #: The one ConfigMap with the list of next kernels.
        self._list: ObjectInformer[ConfigMap] = ObjectInformer(
            runtime.client, CONFIGMAPS, CONFIG_MAP, namespace=NAMESPACE, clock=runtime.clock, rng=runtime.rng
        )
        builds.listen(self._on_build)

    def wake(self) -> None:
        """Starts a new lookup, since nodes or policies have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Looks images up after each change, until cancelled."""
        self._list.add_handler(self._on_list)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._list.run())
            await self._list.wait_synced()
            try:
                while True:
                    self._woken.clear()
                    self._publish(await self._look_up())
                    await self._annotate()
                    await until_set(self._woken, LATE if self.report.open else SOON)
            finally:
                self._metrics.show(CoverageReport())  # a replica that does not lead any more shows nothing

    async def _look_up(self) -> CoverageReport:
        held = self._list.object
        kernels, problems = parse_kernel_lists(held.data if held is not None else {})
        in_use = self._in_use()
        awaited, idle = expected_kernels(kernels, in_use.pools, in_use.everywhere)
        fresh, self._pushed = self._pushed, set()
        orders = [self._order_for(each) for each in awaited]
        rows = [
            await look_up_coverage(each, self._resolver, fresh=isinstance(order, BuildOrder) and order.target in fresh)
            for each, order in zip(awaited, orders, strict=True)
        ]
        wanted = [order for order, row in zip(orders, rows, strict=True) if row.missing]
        self._builds.set_orders([order for order in wanted if isinstance(order, BuildOrder)], by=ASKER)
        return CoverageReport(rows=tuple(map(self._with_build, orders, rows)), problems=problems, idle=idle)

    def _order_for(self, each: ExpectedKernel) -> BuildOrder | str:
        """The order for an image of a kernel; a reason if none can be built."""
        if not each.policy.use_precompiled:
            return "nodes build for themselves, and there is no image to build with"
        if not each.policy.build_repository:
            return "no build repository is set"
        try:
            return order_for(each.policy, each.pool, settings=self._settings)
        except UnbuildableError as error:
            return f"it cannot be built: {error}"

    def _with_build(self, order: BuildOrder | str, row: KernelCoverage) -> KernelCoverage:
        """The row with the state of its build, if registries do not have the image."""
        if not row.missing:
            return row
        return msgspec.structs.replace(row, reason=f"{row.reason}; {self._build_state(order)}")

    def _build_state(self, order: BuildOrder | str) -> str:
        if isinstance(order, str):
            return order
        state = self._builds.state(order)
        detail = f"; {state.text}" if state.text else ""
        return {
            BuildPhase.NONE: "a build is ordered",
            BuildPhase.RUNNING: f"a build is under way{detail}",
            BuildPhase.DONE: "it was built and pushed, and is not found",
            BuildPhase.FAILED: f"its build failed{detail}",
        }[state.phase]

    def _publish(self, report: CoverageReport) -> None:
        self._metrics.show(report)
        if report == self.report:
            return
        if (report.summary, report.gates) != (self.report.summary, self.report.gates):
            _log.info("next kernels: %s", report.sentence)
        self.report = report

    async def _annotate(self) -> None:
        """Writes the report to the ConfigMap's annotation. A failed write is repeated after the next lookup."""
        held = self._list.object
        text = self.report.notice and self.report.notice[:_NOTICE]
        if held is None or held.metadata.annotations.get(COVERAGE_ANNOTATION) == text or not self._may_act():
            return
        patch = {"metadata": {"annotations": {COVERAGE_ANNOTATION: text}}}
        try:
            await self._client.merge_patch(CONFIGMAPS, CONFIG_MAP, patch, NAMESPACE, uid=held.metadata.uid)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.info("ConfigMap %s: the report cannot be written: %s", CONFIG_MAP, error)

    def _on_list(self, event: WatchEvent[ConfigMap]) -> None:
        """Wakes the lookup if the list changed; Tessera's own writes change only the annotation."""
        if event.kind is not EventKind.MODIFIED or event.old is None or event.old.data != event.object.data:
            self._woken.set()

    def _on_build(self, target: str, phase: BuildPhase) -> None:
        if phase is BuildPhase.DONE:
            self._pushed.add(target)
        self._woken.set()


class KernelsInUse(msgspec.Struct, frozen=True, kw_only=True):
    """Pools and policies in use.

    Attributes:
        pools: pools of nodes whose driver Tessera installs, each with its policy.
        everywhere: policies that also select nodes of systems that no node runs yet.
    """

    pools: tuple[tuple[PoolKey, DriverPolicy], ...] = ()
    everywhere: tuple[DriverPolicy, ...] = ()


def kernels_in_use(selection: PolicySelection, nodes: Mapping[str, DriverNodeFacts]) -> KernelsInUse:
    """The kernels in use, from the nodes and their policies."""
    found: dict[tuple[PoolKey, str], tuple[PoolKey, DriverPolicy]] = {}
    for name, policy in selection.nodes.items():
        facts = nodes.get(name)
        if facts is not None and facts.pool is not None and not facts.preinstalled and not facts.opted_out:
            found[facts.pool, policy.full_name] = (facts.pool, policy)
    cluster = selection.cluster
    return KernelsInUse(
        pools=tuple(found[key] for key in sorted(found)),
        everywhere=() if cluster is None or cluster.use_driver_crd else (cluster,),
    )
