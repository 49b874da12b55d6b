"""The server's state that every verb needs (store, registry, watches, parts, clock), and one parsed request."""

import random
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.clock import Clock, rfc3339
from tessera.kube.requests import Request
from tessera_lab.apiserver.audit import AuditLog
from tessera_lab.apiserver.interfaces import (
    Attributes,
    Authorizer,
    BodyDecoder,
    Discovery,
    GetPage,
    GroupResource,
    Logs,
    Obj,
    OpenApi,
    PodServers,
    Policies,
    Quota,
    RunCommand,
    UserInfo,
    Webhooks,
)
from tessera_lab.apiserver.request.negotiation import encode_in_version
from tessera_lab.apiserver.request.routing import QueryParameters, Route
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType
from tessera_lab.apiserver.storage.store import Store, StoredObject
from tessera_lab.apiserver.storage.watch import WatchHubs

NAMESPACES = GroupResource("", "namespaces")
PODS = GroupResource("", "pods")


class ServerParts(msgspec.Struct, kw_only=True):
    """The exchangeable parts; an absent part checks nothing (no quota, everything allowed).

    Attributes:
        create_to_connect: a WebSocket to a pod needs the right to create the subresource, not only to get it.
    """

    authorizer: Authorizer | None = None
    discovery: Discovery | None = None
    openapi: OpenApi | None = None
    webhooks: Webhooks | None = None
    policies: Policies | None = None
    quota: Quota | None = None
    protobuf: BodyDecoder | None = None
    logs: Logs | None = None
    create_to_connect: bool = False
    run_command: RunCommand | None = None
    get_page: GetPage | None = None
    servers: PodServers | None = None


class ServerState:
    """The server's state. ``rng`` makes uids and generated names, so that the same seed gives the same names."""

    def __init__(self, clock: Clock, store: Store, registry: ResourceRegistry, rng: random.Random) -> None:
        self.clock = clock
        self.store = store
        self.registry = registry
        self.hubs = WatchHubs(store)
        self.parts = ServerParts()
        self.audit = AuditLog()
        self.rng = rng

    def new_uid(self) -> str:
        """A fresh UUID, version 4."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def timestamp(self) -> str:
        """Now, as ``metav1.Time``."""
        return rfc3339(self.clock.now())

    def to_stored_form(self, resource: ResourceType, obj: Obj) -> Obj:
        """Converts an object to its stored form: the version that was first registered for its storage."""
        home = self.registry.find_stored(resource.storage) or resource
        return {**resource.to_storage(obj), "apiVersion": home.api_version, "kind": home.kind}

    def to_served_form(self, resource: ResourceType, stored: StoredObject) -> Obj:
        """Returns a private copy of a stored object in the resource's version."""
        shown: Obj = msgspec.json.decode(encode_in_version(resource, stored))
        return shown


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a resource on its way through a verb.

    Attributes:
        options: the verb's options: from the query, or a DeleteOptions body.
        warnings: texts for ``Warning`` headers; verbs append to them.
    """

    request: Request
    query: QueryParameters
    route: Route
    resource: ResourceType
    user: UserInfo
    options: Mapping[str, Any] = {}
    warnings: list[str]

    @property
    def namespace(self) -> str:
        """The object's namespace, empty for cluster-scoped ones."""
        return self.route.namespace if self.resource.namespaced else ""

    @property
    def dry_run(self) -> bool:
        """True if nothing may be stored."""
        return bool(self.options.get("dryRun"))

    @property
    def manager(self) -> str:
        """The field manager: as given, or from the User-Agent up to the first slash."""
        given = str(self.options.get("fieldManager") or "")
        return given or self.request.headers.get("user-agent", "").split("/")[0] or "unknown"

    @property
    def attributes(self) -> Attributes:
        """The request as authorization and admission see it."""
        return Attributes(
            user=self.user,
            verb=self.route.verb,
            group=self.route.group,
            version=self.route.version,
            resource=self.route.resource,
            subresource=self.route.subresource,
            namespace=self.namespace,
            name=self.route.name,
        )
