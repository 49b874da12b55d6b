"""``/openapi/v2``: kubectl reads it for kinds that it does not find in the documents of version 3.

These are ``kind: List`` and kinds that the server does not have. kubectl asks for protobuf
(``openapiv2/OpenAPIv2.proto`` of gnostic), other clients for JSON. The document has the definitions that clients
validate with; it has no paths, since no client reads them there.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera_lab.apiserver.discovery.openapi import GVK, REFERENCE
from tessera_lab.apiserver.interfaces import Obj

#: Content-Type in the request, and in the answer.
PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_ANSWER = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_PLAIN = ("type", "format", "description", "required", "enum", GVK)
_LENGTH_DELIMITED = 2
#: Fields of ``Schema`` by name.
_REF, _FORMAT, _DESCRIPTION, _REQUIRED, _ADDITIONAL = 1, 2, 4, 19, 21
_TYPE, _ITEMS, _PROPERTIES, _VENDOR = 22, 23, 25, 31


def build_document(documents: Iterable[Obj]) -> Obj:
    """Builds the document from the documents of version 3."""
    definitions: Obj = {}
    for each in documents:
        for name, schema in each["components"]["schemas"].items():
            kept = definitions.get(name, {})
            definitions[name] = kept if GVK in kept else _schema(schema)
    info = {"title": "Kubernetes", "version": "v1.32.4+tessera-lab"}
    return {"swagger": "2.0", "info": info, "paths": {}, "definitions": dict(sorted(definitions.items()))}


def _schema(schema: Mapping[str, Any]) -> Obj:
    """Converts a schema of version 3 to version 2; a part that version 2 cannot express allows anything."""
    alone = schema.get("allOf") or [schema]
    if "$ref" in alone[0]:
        return {"$ref": "#/definitions/" + alone[0]["$ref"].removeprefix(REFERENCE)}
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": "string", "format": "int-or-string"}
    if "oneOf" in schema:
        return {"type": "string"}
    made: Obj = {key: schema[key] for key in _PLAIN if key in schema}
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return {key: value for key, value in made.items() if key in {"type", GVK}}
    if "properties" in schema:
        made["properties"] = {name: _schema(each) for name, each in schema["properties"].items()}
    if "items" in schema:
        made["items"] = _schema(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _schema(schema["additionalProperties"])
    return made


def encode_document(made: Obj) -> bytes:
    """The document as protobuf."""
    info = _text(1, made["info"]["title"]) + _text(2, made["info"]["version"])
    definitions = b"".join(_message(1, _named(name, each)) for name, each in made["definitions"].items())
    return _text(1, made["swagger"]) + _message(2, info) + _message(8, b"") + _message(9, definitions)


def _encoded(schema: Obj) -> bytes:
    parts = [
        _text(_REF, schema.get("$ref", "")),
        _text(_FORMAT, schema.get("format", "")),
        _text(_DESCRIPTION, schema.get("description", "")),
        *(_text(_REQUIRED, each) for each in schema.get("required", ())),
    ]
    if "additionalProperties" in schema:
        parts.append(_message(_ADDITIONAL, _message(1, _encoded(schema["additionalProperties"]))))
    if "type" in schema:
        parts.append(_message(_TYPE, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_message(_ITEMS, _message(1, _encoded(schema["items"]))))
    if "properties" in schema:
        properties = b"".join(_message(1, _named(name, each)) for name, each in schema["properties"].items())
        parts.append(_message(_PROPERTIES, properties))
    if GVK in schema:
        value = _text(2, msgspec.json.encode(schema[GVK]).decode())  # JSON is YAML
        parts.append(_message(_VENDOR, _text(1, GVK) + _message(2, value)))
    return b"".join(parts)


def _named(name: str, schema: Obj) -> bytes:
    return _text(1, name) + _message(2, _encoded(schema))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
