"""Decides from image lookups which next kernels have a driver image, and whether nodes may take them.

The gate of one kind of node (system and architecture) is open while every next kernel of that kind is covered. A kernel
is covered if a node that boots into it gets its driver in the way its policy asks for: from a precompiled image where
the policy uses those, else from an image that builds on the node. An unreachable registry covers nothing, except
through its last answer.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution, Resolver
from tessera.driver.kernels import NextKernel
from tessera.driver.planning.strategy import image_queries
from tessera.gpu_operator.driver_policy import DriverPolicy

#: The pools of the existing nodes, and the policy of each.
PoolsInUse = Iterable[tuple[PoolKey, DriverPolicy]]


class ExpectedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that nodes under a policy will run."""

    pool: PoolKey
    policy: DriverPolicy


def node_kind(pool: PoolKey) -> str:
    """The kind of nodes that share a gate: ``ubuntu22.04 amd64``."""
    pages = "" if pool.page_kib == 4 else f" {pool.page_kib}k"
    return f"{pool.os_id}{pool.os_version} {pool.architecture}{pages}"


class KernelCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The coverage of one expected kernel.

    Attributes:
        pool: pool of nodes with this kernel.
        policy: kind and name of the object that selects them.
        covered: True if an image was found.
        image: reference of the image; empty if none was found.
        missing: True if the registries answered that there is no image, so a build would help.
        reason: one sentence: the image that was found, or why none was.
    """

    pool: PoolKey
    policy: str
    covered: bool
    image: str = ""
    missing: bool = False
    reason: str = ""

    @property
    def group(self) -> str:
        """The kind of nodes that share the gate: ``ubuntu22.04 amd64``."""
        return node_kind(self.pool)


class CoverageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Coverage of all next kernels.

    Attributes:
        rows: one for each kernel and policy.
        problems: lines of the lists that are invalid.
        idle: kernels of systems that no node runs and no policy covers.
        unknown: kinds of existing nodes for which the lists name no next kernel.
    """

    rows: tuple[KernelCoverage, ...] = ()
    problems: tuple[str, ...] = ()
    idle: tuple[NextKernel, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def covered(self) -> int:
        """The number of kernels with an image."""
        return sum(row.covered for row in self.rows)

    @property
    def open(self) -> bool:
        """True if every known next kernel is covered; also if none is known, see :attr:`known`."""
        return self.covered == len(self.rows)

    @property
    def complete(self) -> bool:
        """True if a next kernel is known for every node, and every line of the lists is valid."""
        return bool(self.rows) and not self.unknown and not self.problems

    @property
    def summary(self) -> str:
        """``0/1 covered``."""
        return f"{self.covered}/{len(self.rows)} covered"

    @property
    def gates(self) -> dict[str, bool]:
        """For each kind of nodes, True if they may take the next kernel."""
        found: dict[str, bool] = {}
        for row in self.rows:
            found[row.group] = found.get(row.group, True) and row.covered
        return found

    @property
    def sentence(self) -> str:
        """The summary and the missing kernels."""
        lacking = [f"{row.pool.text}: {row.reason}" for row in self.rows if not row.covered]
        more = f"; and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        listed = "; ".join([f"{len(self.rows)} next kernels known"] if not lacking else lacking[:3])
        return f"{self.summary}. {listed}{more}."

    @property
    def notice(self) -> str | None:
        """The text of the list's annotation; None while no next kernel is known."""
        if not self.rows and not self.problems:
            return None
        return "; ".join(self.problems[:3]) if self.problems and self.open else self.sentence


def expected_kernels(
    kernels: Iterable[NextKernel], in_use: PoolsInUse, policies: Sequence[DriverPolicy] = ()
) -> tuple[tuple[ExpectedKernel, ...], tuple[NextKernel, ...]]:
    """Assigns kernels to policies; returns the pairs and the kernels without a policy.

    Args:
        kernels: the next kernels.
        in_use: pools of the existing nodes, with their policies.
        policies: if no node runs the kernel's system, as in node groups scaled to zero, each of these policies covers
            it, on amd64 unless the kernel names another architecture.
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
    """The kinds of these nodes for which no next kernel is known.

    A kernel of a version that no node runs yet, as of the next RHCOS, counts for all nodes with its operating system,
    architecture and page size.
    """
    pools_by_group = {node_kind(pool): pool for pool in pools}
    listed = {row.group: _system(row.pool) for row in rows}
    upgraded = {kind for group, kind in listed.items() if group not in pools_by_group}
    return tuple(
        sorted(each for each, pool in pools_by_group.items() if each not in listed and _system(pool) not in upgraded)
    )


def _system(pool: PoolKey) -> tuple[str, str, int]:
    """The properties that a node keeps when its system's version is raised."""
    return pool.os_id, pool.architecture, pool.page_kib


def covering_queries(each: ExpectedKernel) -> list[ImageQuery]:
    """The image lookups for a kernel; if one of them finds an image, the kernel is covered."""
    asked = image_queries(each.policy, each.pool)
    if not each.policy.use_precompiled:
        return asked
    return [query for query in asked if query.kind is not ImageKind.BUILDER]


def judge_coverage(each: ExpectedKernel, answers: Sequence[Resolution]) -> KernelCoverage:
    """Decides from the answers to :func:`covering_queries`, in their sequence, up to the first FOUND."""
    policy = each.policy.full_name
    for resolution in answers:
        if resolution.outcome is Outcome.FOUND:
            note = " (the registry does not answer now)" if resolution.stale else ""
            return KernelCoverage(
                pool=each.pool,
                policy=policy,
                covered=True,
                image=resolution.reference,
                reason=f"{resolution.reference}{note}",
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
    """Finds out if a kernel is covered; stops at the first image that covers it.

    Args:
        each: the kernel, and the policy of the nodes that will run it.
        resolver: looks up images.
        fresh: query the registries even if an answer is remembered, since an image was just pushed.
    """
    answers: list[Resolution] = []
    for query in covering_queries(each):
        answers.append(await resolver.resolve(query, fresh=fresh))
        if answers[-1].outcome is Outcome.FOUND:
            break
    return judge_coverage(each, answers)
