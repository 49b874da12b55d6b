"""Options of the webhook process."""

from collections.abc import Callable
from dataclasses import dataclass

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.status_pages import OnListening

#: Path to which the API server posts AdmissionReviews of pods, and of objects with pod templates.
REVIEW_PATH = "/mutate-v1-pod"
TEMPLATE_PATH = "/mutate-templates"
#: Path for pods with whole cards or shares of namespaces whose pods Tessera places.
MANAGED_PATH = "/mutate-managed-pod"
#: Path for objects with templates of such pods, of the same namespaces.
MANAGED_TEMPLATE_PATH = "/mutate-managed-templates"
#: Path for Kubernetes' own kinds with templates, whose authors get warnings only.
WORKLOAD_PATH = "/warn-workloads"
#: Path for pods with ResourceClaims.
CLAIM_PATH = "/mutate-claiming-pod"
#: Path for pods whose limits become ResourceClaims.
LIMIT_PATH = "/mutate-limits"
PATHS = (REVIEW_PATH, TEMPLATE_PATH, MANAGED_PATH, MANAGED_TEMPLATE_PATH, WORKLOAD_PATH, CLAIM_PATH, LIMIT_PATH)


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Options of :func:`tessera.webhook.main.run.run`.

    Attributes:
        namespace: the deployment's namespace, which has the Secret.
        service: name of the Service in front of the webhook; the certificate is issued for it.
        secret: name of the Secret that keeps the certificate.
        given_secret: name of a Secret that cert-manager renews; empty if the webhook renews its own certificate.
        configuration: name of the MutatingWebhookConfiguration whose caBundle is kept up to date.
        address: address of the servers; None for all addresses, IPv6 too.
        port: None opens no socket: callers in the process call the reviews directly; 0 picks a free port.
        health_port: plain HTTP port for ``/healthz`` and ``/readyz``; None for no such port.
        extra_names: further DNS names or IP addresses of the certificate, for a webhook reached by URL.
        any_new_nodes: nodes with other cards than those present may come, so their pods are admitted.
        claim_driver: driver of the ResourceClaims that Tessera places, whose pods are gated; empty for none.
        certificate_days: days for which a certificate is valid; it is replaced after two thirds of them.
        on_listening: called with address and port once the TLS server is open.
        on_ready: called once reviews may come: the webhook serves the certificate and the API server trusts it.
    """

    namespace: str = SYSTEM_NAMESPACE
    service: str = "tessera-webhook"
    secret: str = "tessera-webhook-cert"  # noqa: S105 - an object's name
    given_secret: str = ""
    configuration: str = "tessera-webhook"
    address: str | None = None
    port: int | None = 9443
    health_port: int | None = 8081
    extra_names: tuple[str, ...] = ()
    any_new_nodes: bool = False
    claim_driver: str = ""
    certificate_days: int = 90
    on_listening: OnListening | None = None
    on_ready: Callable[[], None] | None = None
