"""Decodes request bodies and options to JSON values, with Kubernetes' errors.

Pure. JSON and YAML are decoded here, protobuf by a ``BodyDecoder``.
"""

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from tessera.kube.requests import Request
from tessera_lab.apiserver.interfaces import BodyDecoder, Obj, StatusCause
from tessera_lab.apiserver.request.routing import QueryParameters
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import StatusError, bad_request_error, invalid_error, unsupported_media_error
from tessera_lab.limits import LAB_NESTING, LAB_VALUES

PROTOBUF = "application/vnd.kubernetes.protobuf"
READABLE = ("application/json", "application/yaml", PROTOBUF)
_TOO_DEEP = "couldn't get version/kind; json parse error: exceeded max depth"
_PROPAGATION = ("Foreground", "Background", "Orphan")


def media_type(request: Request) -> str:
    """The body's media type without parameters; JSON when not given."""
    return request.headers.get("content-type", "application/json").split(";")[0].strip() or "application/json"


def read_body(request: Request, protobuf: BodyDecoder | None) -> Obj:
    """Decodes the body as one object.

    Raises:
        StatusError: 400, it is not valid; 415, its type is not known.
    """
    media = media_type(request)
    if media == PROTOBUF and protobuf is not None:
        try:
            return protobuf(request.body)
        except (ValueError, struct.error, RecursionError) as error:
            raise StatusError(415, "UnsupportedMediaType", str(error)) from None
    if media not in READABLE or media == PROTOBUF:
        raise unsupported_media_error(READABLE if protobuf else READABLE[:2])
    value = parse_json(request.body) if media == "application/json" else parse_yaml(request.body)
    if not isinstance(value, dict):
        raise bad_request_error("couldn't get version/kind; json parse error: the body is not an object")
    return value


def parse_json(body: bytes) -> Any:
    """Parses a JSON value.

    Raises:
        StatusError: 400, it is none.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise bad_request_error(_TOO_DEEP) from None
    except msgspec.DecodeError as error:
        raise bad_request_error(f"couldn't get version/kind; json parse error: {error}") from None
    if body.count(b"{") + body.count(b"[") > LAB_NESTING:
        _check_extent(value)
    return value


class _Loader(yaml.SafeLoader):
    """PyYAML's, which refuses lists and mappings in brackets that are nested too deeply at the first one too many.

    Python's own bound on recursion comes a second of CPU time later.
    """

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's name
        if self.flow_level >= LAB_NESTING:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)


def parse_yaml(body: bytes) -> Any:
    """Parses a YAML value.

    Raises:
        StatusError: 400, it is none.
    """
    try:
        value = yaml.load(body, _Loader)  # noqa: S506 - a safe one
    except RecursionError:
        raise bad_request_error(_TOO_DEEP) from None
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request_error(f"error converting YAML to JSON: {error}") from None
    _check_extent(value)
    return value


def _check_extent(value: Any) -> None:
    """Walks a value to check that the rest of the server can walk it quickly.

    Raises:
        StatusError: 400, the value is too deep, or its aliases expand to too many values.
    """
    waiting, seen = [(value, 1)], 0
    while waiting:
        each, depth = waiting.pop()
        seen += 1
        if depth > LAB_NESTING:
            raise bad_request_error(_TOO_DEEP)
        if seen > LAB_VALUES:
            raise bad_request_error("error converting YAML to JSON: yaml: document contains excessive aliasing")
        if isinstance(each, dict):
            waiting += [(below, depth + 1) for below in each.values()]
        elif isinstance(each, list):
            waiting += [(below, depth + 1) for below in each]


def check_type(obj: Obj, version: str, kind: str) -> None:
    """Checks the body's apiVersion and kind against the endpoint's, and sets those that are absent.

    Raises:
        StatusError: 400, it is another kind's object.
    """
    got_version, got_kind = obj.get("apiVersion") or version, obj.get("kind") or kind
    if got_version != version:
        raise bad_request_error(
            f"the API version in the data ({got_version}) does not match the expected API version ({version})"
        )
    if got_kind != kind:
        raise bad_request_error(f"the kind in the data ({got_kind}) does not match the expected kind ({kind})")
    obj["apiVersion"], obj["kind"] = version, kind


def check_place(obj: Obj, resource: ResourceType, namespace: str, name: str) -> None:
    """Checks the body's namespace and name against the path's, and sets those that are absent.

    Raises:
        StatusError: 400, they differ.
    """
    meta = obj.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request_error(f"{resource.kind}.metadata: expected an object")
    if not resource.namespaced:
        if meta.get("namespace"):
            raise bad_request_error(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        meta.pop("namespace", None)
    elif meta.get("namespace") not in {None, "", namespace}:
        raise bad_request_error("the namespace of the provided object does not match the namespace sent on the request")
    else:
        meta["namespace"] = namespace
    if name and meta.get("name") not in {None, "", name}:
        raise bad_request_error(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    if name:
        meta["name"] = name


def write_options(query: QueryParameters, kind: str) -> Mapping[str, Any]:
    """Reads CreateOptions, UpdateOptions or PatchOptions from the query.

    Raises:
        StatusError: 422, a value is not among those allowed.
    """
    options: dict[str, Any] = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if dry_run := query.text("dryRun"):
        _check_among(kind, "dryRun", dry_run, ("All",))
        options["dryRun"] = [dry_run]
    if manager := query.text("fieldManager"):
        options["fieldManager"] = manager
    if validation := query.text("fieldValidation"):
        _check_among(kind, "fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))
        options["fieldValidation"] = validation
    if query.text("force"):
        options["force"] = query.flag("force")
    return options


def delete_options(request: Request, query: QueryParameters, protobuf: BodyDecoder | None) -> Mapping[str, Any]:
    """Reads DeleteOptions from the body, or from the query if there is no body.

    Raises:
        StatusError: 400 or 422, they are not valid.
    """
    options: dict[str, Any] = {}
    if request.body:
        options = read_body(request, protobuf)
    else:
        options |= {k: v for k, v in write_options(query, "DeleteOptions").items() if k == "dryRun"}
        if policy := query.text("propagationPolicy"):
            options["propagationPolicy"] = policy
        if (grace := query.number("gracePeriodSeconds")) is not None:
            options["gracePeriodSeconds"] = grace
        if query.text("orphanDependents"):
            options["orphanDependents"] = query.flag("orphanDependents")
    if options.get("propagationPolicy") is not None:
        _check_among("DeleteOptions", "propagationPolicy", options["propagationPolicy"], _PROPAGATION)
    for each in options.get("dryRun") or ():
        _check_among("DeleteOptions", "dryRun", each, ("All",))
    return options


def _check_among(kind: str, field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value in allowed:
        return
    shown = ", ".join(f'"{each}"' for each in allowed)
    text = f'Unsupported value: "{value}": supported values: {shown}'
    raise invalid_error(
        "meta.k8s.io", kind, "", [StatusCause(field=field, reason="FieldValueNotSupported", message=text)]
    )
