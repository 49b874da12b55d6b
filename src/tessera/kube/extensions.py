"""Admission webhooks and custom resource definitions, as far as Tessera looks after its own."""

from tessera.kube.meta import ObjectMeta, Wire
from tessera.kube.pods import Condition


class WebhookClientConfig(Wire, frozen=True, kw_only=True):
    """How the API server reaches a webhook; ``ca_bundle`` is PEM, base64 on the wire."""

    ca_bundle: bytes = b""
    url: str | None = None
    service: dict[str, str | int] | None = None


class Webhook(Wire, frozen=True, kw_only=True):
    """One webhook of a configuration; ``name`` is its merge key."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    failure_policy: str = ""


class WebhookConfiguration(Wire, frozen=True, kw_only=True):
    """A mutating or validating webhook configuration, partial."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class CustomResourceDefinitionStatus(Wire, frozen=True, kw_only=True):
    """Served once the condition ``Established`` is ``True``."""

    conditions: tuple[Condition, ...] | None = ()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD, partial."""

    metadata: ObjectMeta = ObjectMeta()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
