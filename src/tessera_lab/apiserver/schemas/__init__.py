"""Schemas of the built-in kinds, from data that ``scripts/builtin_schemas.py`` generates.

One definition is OpenAPI v3 in Kubernetes' dialect, with ``$ref`` to others by bare name. Callers must not change a
definition. The file is read once, at the first call.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

#: One schema node or definition as JSON.
Definition = Mapping[str, Any]


class SchemaLibrary(msgspec.Struct, frozen=True):
    """All built-in definitions.

    Attributes:
        kinds: ``group/version/kind`` (group empty for core) -> name of its definition.
        definitions: by name, ``io.k8s.api.core.v1.Pod``.
    """

    kinds: Mapping[str, str]
    definitions: Mapping[str, Definition]

    def name(self, group: str, version: str, kind: str) -> str | None:
        """Name of a kind's definition, None for a kind that is not built in."""
        return self.kinds.get(f"{group}/{version}/{kind}")

    def resolve(self, node: Definition) -> Definition:
        """The node itself, or the definition that it refers to."""
        name = node.get("$ref")
        return self.definitions[name] if name else node


@cache
def schema_library() -> SchemaLibrary:
    """Returns the definitions; the first call reads them, which takes some milliseconds."""
    return msgspec.json.decode(files(__package__).joinpath("builtin.json").read_bytes(), type=SchemaLibrary)
