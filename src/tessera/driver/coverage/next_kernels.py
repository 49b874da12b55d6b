"""Follows which kernels are to come, looks whether each has a driver image, and has those built that lack one.

What is to come stands in the ConfigMap :data:`~tessera.driver.coverage.kernels.CONFIG_MAP`; who runs what is told by
whoever knows the nodes. Registries are asked through the resolver that everybody uses, so what is remembered there
costs nothing here. What came of it stands in the ConfigMap's annotation. It is looked again when the list, the nodes or
a build changes, and after a while by itself: soon while something is missing, since somebody else may push it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

import msgspec

from tessera.api.driver.policy import DriverPolicy
from tessera.clock import Clock, until_set
from tessera.driver.build.builds import NAMESPACE, Builds
from tessera.driver.build.forms import UnbuildableError
from tessera.driver.build.orders import BuildOrder, order_for
from tessera.driver.build.settings import BuildSettings
from tessera.driver.build.states import BuildPhase
from tessera.driver.coverage.kernels import CONFIG_MAP, listed
from tessera.driver.coverage.looking import looked
from tessera.driver.coverage.metrics import CoverageMetrics
from tessera.driver.coverage.report import Expected, KernelCoverage, Report, expected
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import Resolver
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.informer import Event, EventKind, Informer
from tessera.kube.resources import CONFIGMAPS, Condition, ConfigMap, key
from tessera.limits import COVERAGE_TEXT

_log = logging.getLogger(__name__)

#: Annotation of the ConfigMap: what came of it, for those who cannot ask registries themselves.
COVERAGE_ANNOTATION = "tessera.dev/next-kernels-covered"
#: Condition, for an object that asks for drivers.
CONDITION = "NextKernelsCovered"
#: Who wants builds, in :meth:`Builds.want`.
ASKER = "next kernels"

#: Seconds until it is looked again by itself, while something is missing and while nothing is.
SOON = 60.0
LATE = 1800.0


class NextKernels:
    """The gate in front of kernels that are to come.

    Args:
        client: the API server; needs to list, watch and patch the one ConfigMap.
        clock: the time.
        rng: for jitter of the watch.
        resolver: asks registries.
        in_use: pools of the nodes that there are, with their policies; asked whenever it is looked.
        policies: all policies; for systems that no node runs now.
        builds: has images built; None to only look.
        settings: of builds.
        metrics: shows the gate.
        may_act: whether this replica leads; asked before each write.
        changed: called after the report changed.

    Attributes:
        report: the last one; empty before the first look.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        rng: random.Random,
        resolver: Resolver,
        in_use: Callable[[], Sequence[tuple[PoolKey, DriverPolicy]]],
        policies: Callable[[], Sequence[DriverPolicy]] = tuple,
        builds: Builds | None = None,
        settings: BuildSettings | None = None,
        metrics: CoverageMetrics | None = None,
        may_act: Callable[[], bool] = lambda: True,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.report = Report()
        self._client = client
        self._may_act = may_act
        self._resolver = resolver
        self._in_use = in_use
        self._policies = policies
        self._builds = builds
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._stirred = asyncio.Event()
        self._built: set[str] = set()
        self._list: Informer[ConfigMap] = Informer(
            client,
            CONFIGMAPS,
            clock=clock,
            rng=rng,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={CONFIG_MAP}",
        )
        if builds is not None:
            builds.listen(self._build_changed)

    def stir(self) -> None:
        """Nodes or policies have changed: look again."""
        self._stirred.set()

    @property
    def condition(self) -> Condition | None:
        """What the object that asks for drivers is told; None while no kernel is known to come."""
        report = self.report
        if not report.rows and not report.problems:
            return None
        if report.problems and report.open:
            return Condition(
                type=CONDITION, status="False", reason="ListIsWrong", message="; ".join(report.problems[:3])
            )
        return Condition(
            type=CONDITION,
            status="True" if report.open else "False",
            reason="AllCovered" if report.open else "ImageMissing",
            message=report.sentence,
        )

    async def run(self) -> None:
        """Looks whenever something changed, until cancelled."""
        self._list.add_handler(self._list_seen)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._list.run())
            await self._list.wait_synced()
            try:
                while True:
                    self._stirred.clear()
                    self._take(await self._look())
                    await self._tell()
                    await until_set(self._stirred, LATE if self.report.open else SOON)
            finally:
                if self._metrics is not None:
                    self._metrics.show(Report())  # who does not lead any more says nothing

    async def _look(self) -> Report:
        held = self._list.cache.get(key(NAMESPACE, CONFIG_MAP))
        kernels, problems = listed(held.data if held is not None else {})
        awaited, idle = expected(kernels, self._in_use(), self._policies())
        fresh, self._built = self._built, set()
        rows = [await self._row(each, fresh) for each in awaited]
        self._order(awaited, rows)
        return Report(rows=tuple(map(self._with_build, awaited, rows)), problems=problems, idle=idle)

    async def _row(self, each: Expected, fresh: set[str]) -> KernelCoverage:
        """A registry that was just pushed to is asked whatever is remembered."""
        order = self._ordered(each)
        return await looked(each, self._resolver, fresh=order is not None and order.target in fresh)

    def _ordered(self, each: Expected) -> BuildOrder | None:
        if self._builds is None or not each.policy.use_precompiled or not each.policy.build_repository:
            return None
        try:
            return order_for(each.policy, each.pool, settings=self._settings)
        except UnbuildableError:
            return None

    def _order(self, awaited: Sequence[Expected], rows: Sequence[KernelCoverage]) -> None:
        """Wants a build of everything that registries do not have."""
        if self._builds is None:
            return
        orders = [self._ordered(each) for each, row in zip(awaited, rows, strict=True) if row.missing]
        self._builds.want([order for order in orders if order is not None], by=ASKER)

    def _with_build(self, each: Expected, row: KernelCoverage) -> KernelCoverage:
        """The row with how its build stands, where one is wanted."""
        if row.covered or self._builds is None or not row.missing:
            return row
        order = self._ordered(each)
        if order is None:
            return msgspec.structs.replace(row, reason=f"{row.reason}; {self._unbuildable(each)}")
        state = self._builds.state(order)
        told = f"; {state.text}" if state.text else ""
        phase = {
            BuildPhase.NONE: "a build is ordered",
            BuildPhase.RUNNING: f"a build is under way{told}",
            BuildPhase.DONE: "it was built and pushed, and is not found",
            BuildPhase.FAILED: f"its build failed{told}",
        }[state.phase]
        return msgspec.structs.replace(row, reason=f"{row.reason}; {phase}")

    def _unbuildable(self, each: Expected) -> str:
        if not each.policy.use_precompiled:
            return "nodes build for themselves, and there is no image to build with"
        if not each.policy.build_repository:
            return "no build repository is set"
        try:
            order_for(each.policy, each.pool, settings=self._settings)
        except UnbuildableError as error:
            return f"it cannot be built: {error}"
        return "a build is ordered"

    def _take(self, report: Report) -> None:
        if self._metrics is not None:
            self._metrics.show(report)
        if report == self.report:
            return
        if (report.summary, report.gates) != (self.report.summary, self.report.gates):
            _log.info("next kernels: %s", report.sentence)
        self.report = report
        self._changed()

    async def _tell(self) -> None:
        """Writes what came of it beside the list. A write that failed is made up for after the next look."""
        held = self._list.cache.get(key(NAMESPACE, CONFIG_MAP))
        condition = self.condition
        text = None if condition is None else condition.message[:COVERAGE_TEXT]
        if held is None or held.metadata.annotations.get(COVERAGE_ANNOTATION) == text or not self._may_act():
            return
        patch = {"metadata": {"annotations": {COVERAGE_ANNOTATION: text}}}
        try:
            await self._client.merge_patch(CONFIGMAPS, CONFIG_MAP, patch, NAMESPACE, uid=held.metadata.uid)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.info("ConfigMap %s: what came of it cannot be written: %s", CONFIG_MAP, error)

    def _list_seen(self, event: Event[ConfigMap]) -> None:
        """Our own writes change no list."""
        if event.kind is not EventKind.MODIFIED or event.old is None or event.old.data != event.object.data:
            self._stirred.set()

    def _build_changed(self, target: str, phase: BuildPhase) -> None:
        if phase is BuildPhase.DONE:
            self._built.add(target)
        self._stirred.set()
