"""Requests the builds that nodes wait for, and reads their progress for the strategy."""

from collections.abc import Callable, Collection

from tessera.api.nodes.driver_status import BUILD_TIMEOUT
from tessera.clock import Clock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.job import job_name
from tessera.driver.build.orders import BuildOrder, order_for
from tessera.driver.build.settings import BuildSettings, UnbuildableError
from tessera.driver.build.states import BuildPhase
from tessera.driver.build.states import BuildState as Found
from tessera.driver.driver_sets import PoolKey
from tessera.driver.manifests.names import NAMESPACE
from tessera.driver.planning.strategy import PoolBuild, PoolBuildState
from tessera.gpu_operator.policies.driver_policy import DriverPolicy

#: Seconds after a push during which a registry may not show the image yet.
PUSH_TIMEOUT = 120.0
#: Seconds after which it is checked again if the wait for a build is over.
_LOOK_AGAIN = 60.0


class BuildRequests:
    """Builds that nodes wait for.

    Args:
        builds: makes the builds.
        settings: the administrator's settings for builds.
        clock: the time.
    """

    def __init__(self, builds: BuildJobs, settings: BuildSettings, clock: Clock) -> None:
        self._builds = builds
        self._settings = settings
        self._clock = clock
        self._since: dict[tuple[str, PoolKey], float] = {}  # version and pool -> since when a node waits for the build

    def progress(self, policy: DriverPolicy, pool: PoolKey) -> PoolBuild:
        """The state of the build of a pool's image under a policy."""
        return self._progress(policy, pool)[0] if policy.build_repository else PoolBuild()

    def request(self, pools: Collection[tuple[DriverPolicy, PoolKey]]) -> None:
        """Requests builds for these pools, and for no others."""
        now = self._clock.now()
        waiting = {(policy.source.version, pool) for policy, pool in pools}
        self._since = {key: self._since.get(key, now) for key in waiting}
        orders = [made for policy, pool in pools if (made := self._progress(policy, pool)[1]) is not None]
        self._builds.set_orders(orders, by="nodes")

    def seconds_until_due(self) -> float | None:
        """Seconds until the wait for a build may be over; None if no node waits."""
        return _LOOK_AGAIN if self._since else None

    def _progress(self, policy: DriverPolicy, pool: PoolKey) -> tuple[PoolBuild, BuildOrder | None]:
        now = self._clock.now()
        since = self._since.get((policy.source.version, pool), now)
        return build_progress(policy, pool, self._settings, self._builds.state, wanted_since=since, now=now)


def build_progress(
    policy: DriverPolicy,
    pool: PoolKey,
    settings: BuildSettings,
    state: Callable[[BuildOrder], Found],
    *,
    wanted_since: float,
    now: float,
) -> tuple[PoolBuild, BuildOrder | None]:
    """The state of the build of a pool's image, and its order if one is possible.

    Args:
        policy: the policy that asks for it.
        pool: the nodes that need it.
        settings: the administrator's settings for builds.
        state: returns the state of an order.
        wanted_since: seconds since 1970 from which on a node waits for it.
        now: seconds since 1970.
    """
    try:
        made = order_for(policy, pool, settings=settings)
    except UnbuildableError as error:
        return PoolBuild(state=PoolBuildState.FAILED, reason=f"Nothing can be built in the cluster: {error}."), None
    return _judge_build(made, state(made), wanted_since, now), made


def _judge_build(made: BuildOrder, found: Found, wanted_since: float, now: float) -> PoolBuild:
    words = f" {found.text.rstrip('.')}." if found.text else ""
    if found.phase is BuildPhase.FAILED:
        return PoolBuild(state=PoolBuildState.FAILED, reason=f"The build of {made.target} failed.{words}")
    if found.phase is BuildPhase.DONE and now - found.since > PUSH_TIMEOUT:
        reason = f"The build of {made.target} is done, but the registry does not show it."
        return PoolBuild(state=PoolBuildState.FAILED, reason=reason)
    since = min(wanted_since, found.since or now)
    if now - since > BUILD_TIMEOUT:
        reason = f"The build of {made.target} takes more than {BUILD_TIMEOUT / 60:.0f} min."
        return PoolBuild(state=PoolBuildState.OVERDUE, reason=reason)
    job = f", Job {NAMESPACE}/{job_name(made, found.attempts)}" if found.attempts else ""
    return PoolBuild(state=PoolBuildState.RUNNING, reason=f"Waits for the one build of {made.target}{job}.{words}")
