"""The objects that a provider of the webhook's certificate follows: its Secret, and the webhook configuration."""

import random

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.resources import MUTATING_WEBHOOKS, SECRETS, Secret, WebhookConfiguration
from tessera.kube.watch.informer import Informer
from tessera.webhook.base.options import WebhookOptions


def watch_objects(
    options: WebhookOptions, secret: str, client: Client, clock: Clock, rng: random.Random
) -> tuple[Informer[Secret], Informer[WebhookConfiguration]]:
    """Informers of the Secret with this name, and of the webhook configuration; neither is started yet."""
    named = f"metadata.name={options.configuration}"
    secrets = Informer(
        client, SECRETS, namespace=options.namespace, field_selector=f"metadata.name={secret}", clock=clock, rng=rng
    )
    return secrets, Informer(client, MUTATING_WEBHOOKS, field_selector=named, clock=clock, rng=rng)
