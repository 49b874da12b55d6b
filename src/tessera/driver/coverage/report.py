"""Which of the next kernels have a driver image, and whether nodes may take them.

The gate of one kind of node (system and architecture) is open while every next kernel of that kind is covered. A kernel
is covered if a node that boots into it gets its driver in the way its policy asks for: from a precompiled image where
the policy uses those, else from an image that builds on the node. An unreachable registry covers nothing, except
through its last answer.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.driver.coverage.kernels import NextKernel
from tessera.driver.planning.strategy import image_queries
from tessera.driver.pool import PoolKey
from tessera.driver.resolution import ImageKind, ImageQuery, Outcome, Resolution, Resolver

#: Who runs what: the pools of the nodes that there are, and the policy of each.
PoolsInUse = Iterable[tuple[PoolKey, DriverPolicy]]


class ExpectedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that nodes under a policy will run."""

    pool: PoolKey
    policy: DriverPolicy


def node_kind(pool: PoolKey) -> str:
    """The kind of nodes that a gate is for: ``ubuntu22.04 amd64``."""
    pages = "" if pool.page_kib == 4 else f" {pool.page_kib}k"
    return f"{pool.os_id}{pool.os_version} {pool.architecture}{pages}"


class KernelCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is an image for one of them.

    Attributes:
        pool: the pool that nodes with it will be of.
        policy: kind and name of the object that governs them.
        covered: an image was found.
        image: the reference that was found; empty if none was.
        missing: the registries have answered and there is none: building would help.
        reason: one sentence: what was found, or why nothing.
    """

    pool: PoolKey
    policy: str
    covered: bool
    image: str = ""
    missing: bool = False
    reason: str = ""

    @property
    def group(self) -> str:
        """The kind of nodes that the gate is for: ``ubuntu22.04 amd64``."""
        return node_kind(self.pool)


class CoverageReport(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels that are to come.

    Attributes:
        rows: one for each kernel and policy.
        problems: lines of lists that are no kernels.
        idle: kernels of systems that no node runs and no policy is for.
        unknown: kinds of nodes that are there and for which nobody has said which kernel comes.
    """

    rows: tuple[KernelCoverage, ...] = ()
    problems: tuple[str, ...] = ()
    idle: tuple[NextKernel, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def covered(self) -> int:
        """How many have an image."""
        return sum(row.covered for row in self.rows)

    @property
    def open(self) -> bool:
        """Whether every kernel is covered that is known to come; also if none is, see :attr:`known`."""
        return self.covered == len(self.rows)

    @property
    def known(self) -> bool:
        """Whether it is known of all nodes which kernel comes, and every line of the lists could be read."""
        return bool(self.rows) and not self.unknown and not self.problems

    @property
    def summary(self) -> str:
        """``0/1 covered``."""
        return f"{self.covered}/{len(self.rows)} covered"

    @property
    def gates(self) -> dict[str, bool]:
        """Whether nodes of a kind may take the next kernel, by kind."""
        found: dict[str, bool] = {}
        for row in self.rows:
            found[row.group] = found.get(row.group, True) and row.covered
        return found

    @property
    def sentence(self) -> str:
        """For a condition: the summary, and what is missing."""
        lacking = [f"{row.pool.text}: {row.reason}" for row in self.rows if not row.covered]
        more = f"; and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        listed = "; ".join([f"{len(self.rows)} next kernels known"] if not lacking else lacking[:3])
        return f"{self.summary}. {listed}{more}."


def expected_kernels(
    kernels: Iterable[NextKernel], in_use: PoolsInUse, policies: Sequence[DriverPolicy] = ()
) -> tuple[tuple[ExpectedKernel, ...], tuple[NextKernel, ...]]:
    """Which policy each kernel comes under, and the kernels that are nobody's.

    Args:
        kernels: what is to come.
        in_use: pools of the nodes that there are, with their policies.
        policies: where no node runs the kernel's system, as in node groups that are scaled to zero, all of these are
            for it, on amd64 unless the kernel says otherwise.
    """
    found: dict[tuple[PoolKey, str, str], ExpectedKernel] = {}
    idle = []
    pairs = list(in_use)
    for kernel in kernels:
        own = [
            (pool.architecture, policy)
            for pool, policy in pairs
            if (pool.os_id, pool.os_version) == (kernel.os_id, kernel.os_version)
            and kernel.architecture in {"", pool.architecture}
        ]
        own = own or [("amd64", policy) for policy in policies]
        if not own:
            idle.append(kernel)
        for architecture, policy in own:
            pool = kernel.pool(architecture)
            found[pool, policy.kind, policy.name] = ExpectedKernel(pool=pool, policy=policy)
    return tuple(found.values()), tuple(idle)


def unlisted_groups(pools: Iterable[PoolKey], rows: Iterable[KernelCoverage]) -> tuple[str, ...]:
    """The kinds of these nodes for which no kernel is known to come.

    A kernel of a version that no node runs yet, as of the next RHCOS, is taken for that of all nodes of its system,
    architecture and page size.
    """
    there = {node_kind(pool): pool for pool in pools}
    listed = {row.group: _system(row.pool) for row in rows}
    upgraded = {kind for group, kind in listed.items() if group not in there}
    return tuple(sorted(each for each, pool in there.items() if each not in listed and _system(pool) not in upgraded))


def _system(pool: PoolKey) -> tuple[str, str, int]:
    """What a node keeps when the version of its system is raised."""
    return pool.os_id, pool.architecture, pool.page_kib


def covering_queries(each: ExpectedKernel) -> list[ImageQuery]:
    """What must be asked: any of these covers the kernel."""
    asked = image_queries(each.policy, each.pool)
    if not each.policy.use_precompiled:
        return asked
    return [query for query in asked if query.kind is not ImageKind.BUILDER]


def judge_coverage(each: ExpectedKernel, answers: Sequence[Resolution]) -> KernelCoverage:
    """Judges one kernel by the answers to :func:`covering_queries`, in their order, up to the first FOUND."""
    policy = f"{each.policy.kind}/{each.policy.name}"
    for resolution in answers:
        if resolution.outcome is Outcome.FOUND:
            told = " (the registry does not answer now)" if resolution.stale else ""
            return KernelCoverage(
                pool=each.pool,
                policy=policy,
                covered=True,
                image=resolution.reference,
                reason=f"{resolution.reference}{told}",
            )
    silent = [each for each in answers if each.outcome in {Outcome.UNREACHABLE, Outcome.UNAUTHORIZED}]
    return KernelCoverage(
        pool=each.pool,
        policy=policy,
        covered=False,
        missing=bool(answers) and not silent,
        reason=_why(silent or answers),
    )


def _why(answers: Sequence[Resolution]) -> str:
    for resolution in answers:
        if resolution.tried:
            last = resolution.tried[0]
            return f"{last.reference}: {last.text or last.outcome.value}"
    return answers[0].outcome.value if answers else "no image can be named for it"


async def look_up_coverage(each: ExpectedKernel, resolver: Resolver, *, fresh: bool = False) -> KernelCoverage:
    """Whether a kernel is covered; asks only until something covers it.

    Args:
        each: the kernel, and the policy of the nodes that will run it.
        resolver: asks.
        fresh: ask registries whatever is remembered, since something was just pushed.
    """
    answers: list[Resolution] = []
    for query in covering_queries(each):
        answers.append(await resolver.resolve(query, fresh=fresh))
        if answers[-1].outcome is Outcome.FOUND:
            break
    return judge_coverage(each, answers)
