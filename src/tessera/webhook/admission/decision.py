"""All that admission decides about a pod, in one patch.

In this order, each on what the former has made of the pod: requirements become a resource, amounts are checked, slices
on demand are gated and charged. Decided again on the result, as when the API server reinvokes the webhook, nothing
changes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.webhook.admission.json_patch import Operation, applied
from tessera.webhook.admission.requirements import translate
from tessera.webhook.admission.share_counts import refused_amount
from tessera.webhook.admission.slice_admission import patch
from tessera.webhook.base.budget import Spend, free
from tessera.webhook.base.refusal import Refused
from tessera.webhook.nodes.capabilities import Capabilities


def decide(pod: Mapping[str, Any], capabilities: Capabilities, spend: Spend = free) -> Sequence[Operation]:
    """The operations of a JSON patch; none if the pod is to be left alone.

    Args:
        pod: as it is to be created.
        capabilities: what the cluster has.
        spend: asked before each piece of work.

    Raises:
        Refused: the pod must not be created.
    """
    first = translate(pod, capabilities, spend)
    translated = applied(pod, first)
    spec = translated.get("spec") or {}
    nodes = capabilities.left_by(spec, spend)
    if why := refused_amount(spec, nodes, capabilities):
        raise Refused(why)
    return [*first, *patch(translated, capabilities, nodes, spend)]
