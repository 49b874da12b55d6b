"""Kubernetes' own schemas of its kinds, by version."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

#: The library reads a megabyte of schemas for each object that it checks; here each file is read once.
utils.schema_contents = cache(utils.schema_contents)


def validate(manifest: Mapping[str, Any], version: str) -> None:
    """Checks an object against the schema of a Kubernetes version, which knows all fields.

    Raises:
        kubernetes_validate.ValidationError: the object breaks it, or has an unknown field; a note names the object.
    """
    try:
        kubernetes_validate.validate(dict(manifest), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        error.add_note(f"{manifest['kind']} {manifest['metadata']['name']}, Kubernetes {version}")
        raise
