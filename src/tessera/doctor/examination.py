"""All checks of a cluster."""

from collections.abc import Sequence

from tessera.clock import Clock
from tessera.doctor.card_checks import check_claims
from tessera.doctor.facts import Finding, Refusal
from tessera.doctor.installation_checks import check_installation
from tessera.doctor.platform_checks import check_platform
from tessera.doctor.reading import read_facts
from tessera.kube.client import Client


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
    found = [*check_platform(facts), *check_installation(facts), *check_claims(facts)]
    if isinstance(facts.kueue, Refusal) and facts.kueue.missing:
        return found
    from tessera.doctor.queue_checks import check_queues  # few clusters have Kueue

    return [*found, *check_queues(facts)]
