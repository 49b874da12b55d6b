"""The protections that an installation can leave out, each by its name.

Every form of installation has the same ones: ``tessera install --without NAME``, the components in ``deploy/without/``,
values of the Helm chart, and the operator of the OLM bundle. ``docs/protections.md`` says what each prevents. The
policy for pods that use GPUs without a request is not among them: it has three states (``--device-access``).
"""

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tessera.api.names import SYSTEM_NAMESPACE

Manifest = dict[str, Any]

AGENT_POLICY = "agent-policy"
DRIVER_POLICY = "driver-policy"
NAMESPACE_POLICY = "namespace-policy"
PIN_POLICY = "pin-policy"
FLOW_SCHEMAS = "flow-schemas"
NETWORK_POLICIES = "network-policies"
POD_SECURITY = "pod-security"
PROTECTIONS = (
    AGENT_POLICY,
    DRIVER_POLICY,
    NAMESPACE_POLICY,
    PIN_POLICY,
    FLOW_SCHEMAS,
    NETWORK_POLICIES,
    POD_SECURITY,
)

#: The label that sets the Pod Security level of a namespace.
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"

_POLICIES = ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy")
#: The objects of each protection: kinds in the order in which they are deleted, and names.
OBJECTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    AGENT_POLICY: (_POLICIES, ("tessera-agent",)),
    DRIVER_POLICY: (_POLICIES, ("tessera-driver",)),
    NAMESPACE_POLICY: (_POLICIES, ("tessera-namespaces",)),
    PIN_POLICY: (_POLICIES, ("tessera-pins",)),
    FLOW_SCHEMAS: (("FlowSchema",), ("tessera-leader-election", "tessera-decisions")),
    NETWORK_POLICIES: (
        ("NetworkPolicy",),
        ("tessera-agent", "tessera-controller", "tessera-webhook", "tessera-dashboard", "tessera-mps"),
    ),
}


def without_protections(manifests: Iterable[Manifest], left_out: Collection[str]) -> list[Manifest]:
    """The manifests without the objects and labels of the protections that are left out; the input stays as it is."""
    kept = [each for each in manifests if not any(_is_of(each, name) for name in left_out)]
    return [_unlabelled(each) for each in kept] if POD_SECURITY in left_out else kept


def _is_of(manifest: Manifest, protection: str) -> bool:
    kinds, names = OBJECTS.get(protection, ((), ()))
    return manifest["kind"] in kinds and manifest["metadata"]["name"] in names


def _unlabelled(manifest: Manifest) -> Manifest:
    if (manifest["kind"], manifest["metadata"]["name"]) != ("Namespace", SYSTEM_NAMESPACE):
        return manifest
    changed = copy.deepcopy(manifest)
    changed["metadata"]["labels"].pop(POD_SECURITY_LABEL, None)
    return changed
