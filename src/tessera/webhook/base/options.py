"""Options of the webhook process."""

from collections.abc import Callable
from dataclasses import dataclass

#: Path that the API server posts AdmissionReviews to.
REVIEW_PATH = "/mutate-v1-pod"


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Options of :func:`tessera.webhook.main.run.run`.

    Attributes:
        namespace: the deployment's, where the Secret lives.
        service: name of the Service in front of the webhook; the certificate is made out to it.
        secret: name of the Secret that keeps the certificate.
        configuration: name of the MutatingWebhookConfiguration whose caBundle is kept up to date.
        address: where the servers listen; None for all addresses, IPv6 too.
        port: None opens no socket at all: reviews are then called in process; 0 picks a free port.
        health_port: plain HTTP for ``/healthz`` and ``/readyz``; None for none.
        extra_names: further DNS names or IP addresses of the certificate, for a webhook reached by URL.
        certificate_days: how long a certificate is valid; it is replaced after two thirds of that.
        on_listening: told address and port once the TLS server is open.
        on_ready: called once reviews may come: the certificate is served and the API server trusts it.
    """

    namespace: str = "tessera-system"
    service: str = "tessera-webhook"
    secret: str = "tessera-webhook-cert"  # noqa: S105 - an object's name
    configuration: str = "tessera-webhook"
    address: str | None = None
    port: int | None = 9443
    health_port: int | None = 8081
    extra_names: tuple[str, ...] = ()
    certificate_days: int = 90
    on_listening: Callable[[str, int], None] | None = None
    on_ready: Callable[[], None] | None = None
