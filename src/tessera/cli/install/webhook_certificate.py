"""The webhook's certificate by cert-manager, instead of the webhook's own.

The webhook then only reads: its rights to write the Secret and the webhook configuration are left out, and
cert-manager's injector writes the authority into the configuration.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tessera.cli.install.protections import Manifest

OWN, CERT_MANAGER = "own", "cert-manager"
#: The Secret that cert-manager writes.
SECRET = "tessera-webhook-tls"  # noqa: S105 - an object's name
WEBHOOK = "tessera-webhook"
#: Names of cert-manager's objects, Certificates and Issuers.
OBJECTS = (WEBHOOK, "tessera-webhook-ca", "tessera-webhook-root")
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
