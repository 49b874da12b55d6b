"""Decides about the pod templates of an object that Kueue queues: a Job, JobSet, Ray or Kubeflow object.

Kueue charges these objects what their templates say. The pods that come from them get slices and charges from
:mod:`tessera.webhook.decision`, which Kueue does not see. So the same decision is made for each template when
the object is created, but for the gate, which belongs to pods:

- requirements become the resource that fulfils them, with the nodes that have it;
- slices on demand are charged to the memory quota.

Templates without slices, memory quota or requirements are left alone, and count for no limit: most objects of these
kinds have nothing to do with slices. :func:`asks` is what the condition of ``jobs.tessera.dev`` says of a Job.

A later decision on a pod of the template changes nothing but its gate, and so does a second one on the template. An
object that Kueue does not hold gets at most the size of a gang (:mod:`tessera.webhook.pod_json`): its pods
are decided on when they are created, by the cards of that time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import MIG_RESOURCE_PREFIX, OWN_DOMAIN, QUOTA_RESOURCE
from tessera.api.pod_templates import Path, TemplateKind, find_templates, is_queued
from tessera.limits import POD_TEMPLATES
from tessera.webhook.base import PodRefused, Rule, SpendTime, refuse_oversized, spend_nothing
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.decision import refuse_share_counts, translate_requirements
from tessera.webhook.pod_json import Operation, PodSchema, Spec, apply_operations, size_of, write_gang_size
from tessera.webhook.slice_admission import patch_for_slices

Json = Mapping[str, Any]
#: A decision about an object with templates, as :func:`decide_templates`.
DecideTemplates = Callable[[TemplateKind, Json, Capabilities, SpendTime], Sequence[Operation]]
_DecideTemplate = Callable[[Json, Capabilities, SpendTime], Sequence[Operation]]


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
    operations: list[Operation] = [*write_gang_size(kind, item)]
    if not is_queued(kind, item):
        return operations
    asking = [(path, template) for path, template in find_templates(kind, item) if asks(template)]
    if len(asking) > POD_TEMPLATES:
        raise PodRefused(Rule.SIZE, f"has more templates with slices than are reviewed, {POD_TEMPLATES}: use fewer")
    return [*operations, *decide_each(asking, decide_template, capabilities, spend)]


def decide_each(
    templates: Iterable[tuple[Path, Json]], decide: _DecideTemplate, capabilities: Capabilities, spend: SpendTime
) -> Iterator[Operation]:
    """Yields the operations on the object that has these templates.

    Args:
        templates: the templates, each with its path in the object.
        decide: the decision about one of them.
        capabilities: the GPU resources of the cluster.
        spend: called before each piece of work.

    Raises:
        PodRefused: no pod of a template could be created; the text begins with the template's path.
        msgspec.ValidationError: a template is not that of a pod.
    """
    for path, template in templates:
        try:
            made = decide(template, capabilities, spend)
        except PodRefused as refused:
            raise PodRefused(refused.rule, f"{'.'.join(path)}: {refused}") from None
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{'.'.join(path)}: {error}") from None
        yield from (_below(path, each) for each in made)


def asks(template: Json) -> bool:
    """True if a template asks for slices or the memory quota, or has requirements for a GPU.

    Parts of a wrong type ask for nothing; the API server or the kind's controller reports them.
    """
    if any(str(key).startswith(OWN_DOMAIN) for key in _keys(_get(_get(template, "metadata"), "annotations"))):
        return True
    resources = requested_resources(template)
    return any(name.startswith(MIG_RESOURCE_PREFIX) or name == QUOTA_RESOURCE for name in resources)


def requested_resources(template: Json) -> Iterator[str]:
    """Yields the resources in limits and requests of a template; parts of a wrong type have none."""
    spec = _get(template, "spec")
    for group in ("initContainers", "containers"):
        for container in _entries(_get(spec, group)):
            for amounts in ("limits", "requests"):
                yield from _keys(_get(_get(container, "resources"), amounts))


def _get(at: Any, name: str) -> Any:
    return at.get(name) if isinstance(at, dict) else None


def _keys(at: Any) -> Iterable[str]:
    return at if isinstance(at, dict) else ()


def _entries(at: Any) -> Iterable[Any]:
    return at if isinstance(at, list) else ()


def decide_template(template: Json, capabilities: Capabilities, spend: SpendTime) -> Sequence[Operation]:
    """Returns the operations on one template, as if it were a pod; it gets no gate.

    Raises:
        PodRefused: no pod of it could be created.
        msgspec.ValidationError: it is not the template of a pod.
    """
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
