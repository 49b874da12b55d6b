"""Checks the templates of pods with whole cards or shares in a namespace whose pods Tessera places.

A pod whose devices no node could hold, even an empty one, is refused when it is created
(:mod:`tessera.webhook.admission.device_admission`). Its Job's controller would try again for ever, and the author of
the Job would find the reason in events only. So an object with such a template is refused with the same text. Rules:

- Every object of the kinds counts, whether Kueue holds it or not.
- Nothing is changed: the gate belongs to pods, and whole cards are charged by their own resource.
- Templates beyond the number that is reviewed are left to their pods; so are those of which the object makes no pod as
  it is, and those of an object that another controller runs, usually in another cluster (``managedBy``).
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from tessera.api.names import GPU_RESOURCES
from tessera.api.pods.templates import TemplateKind, find_templates, has_pods, runs_elsewhere
from tessera.limits.pods import POD_TEMPLATES
from tessera.webhook.admission.device_admission import asks_for_devices, refuse_impossible_devices
from tessera.webhook.admission.json_patch import Operation
from tessera.webhook.admission.pod_schema import PodSchema, Spec, size_of
from tessera.webhook.admission.template_admission import decide_each, requested_resources
from tessera.webhook.base.budget import SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]


def check_managed_templates(
    kind: TemplateKind, item: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Refuses as :func:`~tessera.webhook.admission.template_admission.decide_templates`; returns no operation.

    Raises:
        PodRefused: no node could hold a pod of a template; the text begins with the template's path.
    """
    if runs_elsewhere(item):
        return ()
    asking = (
        (path, template)
        for path, template in find_templates(kind, item)
        if not set(GPU_RESOURCES).isdisjoint(requested_resources(template)) and has_pods(item, path)
    )
    return list(decide_each(islice(asking, int(POD_TEMPLATES)), _check, capabilities, spend))


def _check(template: Json, capabilities: Capabilities, spend: SpendTime) -> Sequence[Operation]:
    shape = msgspec.convert(template, PodSchema)
    refuse_oversized(size_of(shape.spec or Spec()))
    spec = template.get("spec") or {}
    if asks_for_devices(spec):
        refuse_impossible_devices(spec, capabilities, spend)
    return ()
