"""All that admission decides about a pod, in one patch.

In this order, each on what the former has made of the pod: requirements become a resource, amounts are checked, slices
on demand are gated and charged. Decided again on the result, as when the API server reinvokes the webhook, nothing
changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.webhook.admission import Refused, patch
from tessera.webhook.amounts import refused_amount
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.operations import Operation, applied
from tessera.webhook.translation import translate


def decide(pod: Mapping[str, Any], capabilities: Capabilities) -> Sequence[Operation]:
    """The operations of a JSON patch; none if the pod is to be left alone.

    Args:
        pod: as it is to be created.
        capabilities: what the cluster has.

    Raises:
        Refused: the pod must not be created.
    """
    first = translate(pod, capabilities)
    translated = applied(pod, first)
    spec = translated.get("spec") or {}
    if why := refused_amount(spec, capabilities.left_by(spec)):
        raise Refused(why)
    return [*first, *patch(translated, capabilities)]
