"""Decides about the pod templates of an object that Kueue queues: a Job, JobSet, Ray or Kubeflow object.

Kueue charges these objects what their templates say. The pods that come from them get slices and charges from
:mod:`tessera.webhook.admission.decision`, which Kueue does not see. So the same decision is made for each template when
the object is created, but for the gate, which belongs to pods:

- requirements become the resource that fulfils them, with the nodes that have it;
- slices on demand are charged to the memory quota.

A later decision on a pod of the template changes nothing but its gate, and so does a second one on the template. An
object that Kueue does not hold is left alone: its pods are decided on when they are created, by the cards of that time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.kueue.templates import TemplateKind, find_templates, is_queued
from tessera.limits.pods import POD_TEMPLATES
from tessera.webhook.admission.decision import refuse_share_counts
from tessera.webhook.admission.json_patch import Operation, apply_operations
from tessera.webhook.admission.pod_schema import PodSchema, Spec, size_of
from tessera.webhook.admission.requirements import translate_requirements
from tessera.webhook.admission.slice_admission import patch_for_slices
from tessera.webhook.base.budget import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.nodes.capabilities import Capabilities

Json = Mapping[str, Any]


def decide_templates(
    kind: TemplateKind, item: Json, capabilities: Capabilities, spend: SpendTime = spend_nothing
) -> Sequence[Operation]:
    """Returns the operations of a JSON patch; none if no template needs a change.

    Args:
        kind: the object's kind.
        item: the object to be created.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: no pod of a template could be created; the text begins with the template's path.
        msgspec.ValidationError: a template is not that of a pod.
    """
    if not is_queued(kind, item):
        return ()
    operations: list[Operation] = []
    for number, (path, template) in enumerate(find_templates(kind, item)):
        if number >= POD_TEMPLATES:
            raise PodRefused(Rule.SIZE, f"has more templates of pods than are reviewed, {POD_TEMPLATES}: use fewer")
        try:
            made = _decide(template, capabilities, spend)
        except PodRefused as refused:
            raise PodRefused(refused.rule, f"{'.'.join(path)}: {refused}") from None
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{'.'.join(path)}: {error}") from None
        operations += (_below(path, each) for each in made)
    return operations


def _decide(template: Json, capabilities: Capabilities, spend: SpendTime) -> Sequence[Operation]:
    shape = msgspec.convert(template, PodSchema)
    refuse_oversized(size_of(shape.spec or Spec()))
    first = translate_requirements(template, capabilities, spend)
    translated = apply_operations(template, first)
    spec = translated.get("spec") or {}
    nodes = capabilities.selected_by(spec, spend)
    refuse_share_counts(spec, nodes, capabilities)
    return [*first, *patch_for_slices(translated, capabilities, nodes, spend, gates=False)]


def _below(path: Sequence[str], operation: Operation) -> Operation:
    """The operation on a template as one on the object that has it."""
    prefix = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    return {**operation, "path": prefix + operation["path"]}
