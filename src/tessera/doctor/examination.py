"""All checks of a cluster."""

from collections.abc import Sequence

from tessera.clock import Clock
from tessera.doctor.claim_checks import check_claims
from tessera.doctor.findings import Finding, Verdict
from tessera.doctor.installation_checks import check_installation
from tessera.doctor.platform_checks import check_platform
from tessera.doctor.queue_checks import check_queues
from tessera.doctor.reading import read_facts
from tessera.kube.client.client import Client


async def examine(client: Client, clock: Clock, trial_namespace: str = "default") -> Sequence[Finding]:
    """Returns the findings, in a fixed order.

    Args:
        client: the asker's.
        clock: the asker's clock.
        trial_namespace: namespace of a pod that the API server reviews and does not store.

    Raises:
        ConnectionError: the API server does not answer at all.
    """
    facts = await read_facts(client, clock, trial_namespace)
    return [*check_platform(facts), *check_installation(facts), *check_claims(facts), *check_queues(facts)]


def worst(findings: Sequence[Finding]) -> Verdict:
    """The most important verdict; OK for no findings."""
    order = list(Verdict)
    return min((each.verdict for each in findings), key=order.index, default=Verdict.OK)
