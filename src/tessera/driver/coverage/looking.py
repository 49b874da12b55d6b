"""Asks registries about kernels that are to come."""

from tessera.driver.coverage.report import Expected, KernelCoverage, covered_by, ways
from tessera.driver.resolution import Outcome, Resolution, Resolver


async def looked(each: Expected, resolver: Resolver, *, fresh: bool = False) -> KernelCoverage:
    """Whether a kernel is covered; asks only until something covers it.

    Args:
        each: the kernel, and the policy of the nodes that will run it.
        resolver: asks.
        fresh: ask registries whatever is remembered, since something was just pushed.
    """
    answers: list[Resolution] = []
    for query in ways(each):
        answers.append(await resolver.resolve(query, fresh=fresh))
        if answers[-1].outcome is Outcome.FOUND:
            break
    return covered_by(each, answers)
