"""Kueue's manager in a lab: a Deployment as its manifests have it, whose container is the stand-in.

As the real one, it reads its Configuration when it starts, so a change counts after a restart of the Deployment. Its
webhooks and its visibility API are called in this process while the container runs.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import yaml

from tessera.cli.base.durations import parse_duration
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.client.requests import Request, Response
from tessera.kube.resources import API_SERVICES, CONFIGMAPS, DEPLOYMENTS, MUTATING_WEBHOOKS, SERVICES
from tessera.kueue.charges import read_settings
from tessera.kueue.names import (
    CONFIG_KEY,
    CONFIG_MAP,
    CONFIG_NAMESPACE,
    CONFIGURATION_GROUP,
    MANAGER,
    VISIBILITY_GROUP,
)
from tessera_lab.apiserver.admission.webhooks.callers import Reviewer
from tessera_lab.kubelet.images.catalogue import ImageProgram
from tessera_lab.kubelet.images.image_programs import FAILED_EXIT, ProgramContext
from tessera_lab.kueue.stand_in import StandIn, create_kinds
from tessera_lab.kueue.visibility import Visibility
from tessera_lab.kueue.webhooks import SERVICE, KueueWebhooks, configuration

Json = dict[str, Any]
#: Services that are called in this process, by namespace and name.
Reviewers = dict[tuple[str, str], Reviewer]
Services = dict[tuple[str, str], Callable[[Request], Awaitable[Response]]]

VERSION = "v1beta2"
#: The image's name says what runs in the lab.
IMAGE = "registry.k8s.io/kueue/kueue:simulated-by-the-lab"
VISIBILITY_SERVICE = "kueue-visibility-server"
WEBHOOKS = "kueue-mutating-webhook-configuration"
_LABELS = {"control-plane": "controller-manager"}
#: Seconds of ``waitForPodsReady`` without a timeout, in Kueue 0.19 and newer.
_READY_TIMEOUT = 1800.0
#: Seconds between two looks for the manager.
_POLL = 0.1

#: Kueue's Configuration before a site has changed it, as far as the stand-in follows it.
DEFAULT = {
    "apiVersion": f"{CONFIGURATION_GROUP}/{VERSION}",
    "kind": "Configuration",
    "integrations": {"frameworks": ["batch/job", "pod", "deployment", "statefulset"]},
}


async def install_kueue(client: Client, clock: Clock, reviewers: Reviewers, seconds: float) -> None:
    """Creates the objects of Kueue's manifests, and waits until the manager runs.

    Raises:
        TimeoutError: it did not start within ``seconds``.
    """
    await create_kinds(client, VERSION)
    await _create_manager(client)
    end = clock.monotonic() + seconds
    while (CONFIG_NAMESPACE, SERVICE) not in reviewers:
        if clock.monotonic() > end:
            raise TimeoutError(f"Kueue's manager did not start within {seconds:g} s")
        await clock.sleep(_POLL)
    await client.create(MUTATING_WEBHOOKS.as_dicts(), configuration(WEBHOOKS))


async def _create_manager(client: Client) -> None:
    text = yaml.safe_dump(DEFAULT, sort_keys=False)
    await client.create(CONFIGMAPS.as_dicts(), {**_named(CONFIG_MAP), "data": {CONFIG_KEY: text}}, CONFIG_NAMESPACE)
    for name, port in ((SERVICE, 9443), (VISIBILITY_SERVICE, 8082)):
        spec: Json = {"selector": _LABELS, "ports": [{"name": "https", "port": 443, "targetPort": port}]}
        await client.create(SERVICES.as_dicts(), {**_named(name), "spec": spec}, CONFIG_NAMESPACE)
    container = {"name": "manager", "image": IMAGE, "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}}}
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [container]}}
    # No two managers side by side: the stand-in elects no leader.
    rules = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": _LABELS}}
    deployment = {**_named(MANAGER), "spec": {**rules, "template": template}}
    await client.create(DEPLOYMENTS.as_dicts(), deployment, CONFIG_NAMESPACE)
    service = {"namespace": CONFIG_NAMESPACE, "name": VISIBILITY_SERVICE, "port": 443}
    names: Json = {"group": VISIBILITY_GROUP, "version": VERSION, "service": service, "insecureSkipTLSVerify": True}
    priorities = {"groupPriorityMinimum": 100, "versionPriority": 100}
    await client.create(API_SERVICES, {**_named(f"{VERSION}.{VISIBILITY_GROUP}"), "spec": {**names, **priorities}})


def _named(name: str) -> Json:
    return {"metadata": {"name": name}}


def manager_program(client: Client, clock: Clock, reviewers: Reviewers, services: Services) -> ImageProgram:
    """Makes the program of :data:`IMAGE`.

    Args:
        client: an administrator.
        clock: the lab's time.
        reviewers: the webhooks of this process, to which the container adds its own while it runs.
        services: the services of this process, likewise.
    """

    async def run(context: ProgramContext) -> int:
        try:
            stand_in = _stand_in(client, clock, await _read_configuration(client))
        except (ApiError, ValueError, yaml.YAMLError) as error:
            context.log(f"unable to load the configuration: {' '.join(str(error).split())}")
            return FAILED_EXIT
        visibility = Visibility(client, VERSION)
        reviewers[CONFIG_NAMESPACE, SERVICE] = stand_in.webhooks.review
        services[CONFIG_NAMESPACE, VISIBILITY_SERVICE] = visibility.answer
        context.ready()
        context.log("a stand-in of Kueue runs; Kueue itself does not run in this lab")
        try:
            await stand_in.run()
        except* (ApiError, OSError) as errors:
            context.log(f"stopped: {errors.exceptions[0]}")
        finally:
            del reviewers[CONFIG_NAMESPACE, SERVICE], services[CONFIG_NAMESPACE, VISIBILITY_SERVICE]
        return FAILED_EXIT

    return run


async def _read_configuration(client: Client) -> Json:
    """The Configuration.

    Raises:
        ValueError: there is none, or it is none.
    """
    try:
        stored = await client.get(CONFIGMAPS, CONFIG_MAP, CONFIG_NAMESPACE)
    except NotFound:
        raise ValueError(f"there is no ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP}") from None
    found = yaml.safe_load(stored.data.get(CONFIG_KEY, ""))
    if not isinstance(found, dict) or found.get("kind") != "Configuration":
        raise ValueError(f"{CONFIG_KEY} in ConfigMap {CONFIG_NAMESPACE}/{CONFIG_MAP} is no Configuration")
    return found


def _stand_in(client: Client, clock: Clock, configuration: Json) -> StandIn:
    waits = configuration.get("waitForPodsReady") or {}
    timeout = parse_duration(waits["timeout"]) if waits.get("timeout") else _READY_TIMEOUT
    return StandIn(
        client,
        clock,
        resources=configuration.get("resources") or {},
        version=VERSION,
        # As in Kueue 0.19, it is on where it is not set.
        ready_timeout=None if read_settings(configuration).waits_for_pods is False else timeout,
        webhooks=KueueWebhooks(everything=bool(configuration.get("manageJobsWithoutQueueName"))),
    )
