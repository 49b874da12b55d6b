"""Between a policy that names a repository for builds and the builds themselves: which one is wanted, how it stands."""

from collections.abc import Callable

from tessera.api.driver.policy import DriverPolicy
from tessera.driver.build.forms import UnbuildableError
from tessera.driver.build.orders import BuildOrder, order_for
from tessera.driver.build.settings import BuildSettings
from tessera.driver.build.states import BuildPhase
from tessera.driver.build.states import BuildState as Found
from tessera.driver.pool import PoolKey
from tessera.driver.strategy import Build, BuildState

#: Seconds that nodes wait for the one build before they build for themselves. NVIDIA's CI takes about 19 min.
BUILD_PATIENCE = 2400.0
#: Seconds after a push in which a registry may not show the image yet.
PUSH_PATIENCE = 120.0


def build_view(
    policy: DriverPolicy,
    pool: PoolKey,
    settings: BuildSettings,
    state: Callable[[BuildOrder], Found],
    *,
    wanted_since: float,
    now: float,
) -> tuple[Build, BuildOrder | None]:
    """How the build of a pool's image stands, and its order if there can be one.

    Args:
        policy: what asks for it.
        pool: for whom.
        settings: what else is said about building.
        state: how far an order is.
        wanted_since: seconds since 1970 from which on somebody waits for it.
        now: seconds since 1970.
    """
    try:
        made = order_for(policy, pool, settings=settings)
    except UnbuildableError as error:
        return Build(state=BuildState.FAILED, reason=f"Nothing can be built in the cluster: {error}."), None
    return _judged(made, state(made), wanted_since, now), made


def _judged(made: BuildOrder, found: Found, wanted_since: float, now: float) -> Build:
    words = f" {found.text.rstrip('.')}." if found.text else ""
    if found.phase is BuildPhase.FAILED:
        return Build(state=BuildState.FAILED, reason=f"The build of {made.target} failed.{words}")
    if found.phase is BuildPhase.DONE and now - found.since > PUSH_PATIENCE:
        reason = f"The build of {made.target} is done, but the registry does not show it."
        return Build(state=BuildState.FAILED, reason=reason)
    since = min(wanted_since, found.since or now)
    if now - since > BUILD_PATIENCE:
        reason = f"The build of {made.target} takes more than {BUILD_PATIENCE / 60:.0f} min."
        return Build(state=BuildState.OVERDUE, reason=reason)
    return Build(state=BuildState.RUNNING, reason=f"Waits for the one build of {made.target}.{words}")
