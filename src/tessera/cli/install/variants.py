"""What an installation can leave out or take from others: its protections, and the webhook's own certificate.

Every form of installation has the same protections, each with a name: ``tessera install --without NAME``, the
components in ``deploy/without/``, values of the Helm chart, and the operator of the OLM bundle. ``docs/protections.md``
says what each prevents. The policy for pods that use GPUs without a request is not among them: it has three states
(``--device-access``).

With cert-manager's certificate the webhook only reads: its rights to write the Secret and the webhook configuration are
left out, and cert-manager's injector writes the authority into the configuration.
"""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
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


OWN, CERT_MANAGER = "own", "cert-manager"
#: The Secret that cert-manager writes.
SECRET = "tessera-webhook-tls"  # noqa: S105 - an object's name
WEBHOOK = "tessera-webhook"
#: Names of cert-manager's objects, Certificates and Issuers.
CERTIFICATE_OBJECTS = (WEBHOOK, "tessera-webhook-ca", "tessera-webhook-root")
#: The annotation by which cert-manager's injector finds the certificate.
INJECT = {"cert-manager.io/inject-ca-from": f"tessera-system/{WEBHOOK}"}
ARGUMENT = f"--certificate-secret={SECRET}"

_READ = ["list", "watch"]
_SECRET_RULE = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": _READ}
_WRITABLE = "mutatingwebhookconfigurations"


def with_cert_manager(
    manifests: Iterable[Manifest], certificates: Sequence[Manifest], issuer: tuple[str, str] | None
) -> list[Manifest]:
    """The manifests with cert-manager's objects before the webhook.

    Args:
        manifests: all objects of an installation; not changed.
        certificates: the objects of ``deploy/options/cert-manager/certificates.yaml``.
        issuer: kind and name of an issuer in the cluster; None for an authority of Tessera's own.
    """
    changed = [_changed(copy.deepcopy(each)) for each in manifests]
    first = next(number for number, each in enumerate(changed) if each["kind"] == "Deployment")
    changed[first:first] = list(_issued(certificates, issuer))
    return changed


def _issued(certificates: Sequence[Manifest], issuer: tuple[str, str] | None) -> Iterable[Manifest]:
    if issuer is None:
        return copy.deepcopy(list(certificates))
    own = copy.deepcopy(certificates[-1])
    own["spec"]["issuerRef"] = dict(zip(("kind", "name"), issuer, strict=True))
    return [own]


def _changed(manifest: Manifest) -> Manifest:
    kind, metadata = manifest["kind"], manifest["metadata"]
    if metadata["name"] != WEBHOOK:
        return manifest
    if kind == "Deployment":
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        container["args"] = [*container["args"], ARGUMENT]
    elif kind == "MutatingWebhookConfiguration":
        metadata["annotations"] = {**metadata.get("annotations", {}), **INJECT}
    elif kind in {"Role", "ClusterRole"}:
        manifest["rules"] = reading_rules(manifest["rules"])
    return manifest


def reading_rules(rules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The webhook's rules without those for writing its own certificate."""
    if any("secrets" in each["resources"] for each in rules):
        return [copy.deepcopy(_SECRET_RULE)]
    return [{**each, "verbs": _READ} if _WRITABLE in each["resources"] else each for each in rules]
