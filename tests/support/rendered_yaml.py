"""The objects that kubectl, Helm and the command line print as YAML.

Renderings of an installation with one choice more share nearly all of their documents, and reading YAML takes ten times
as long as making them: each different document is read once.
"""

import re
from functools import cache
from typing import Any

import msgspec
import yaml


def read_documents(text: str) -> list[dict[str, Any]]:
    """The documents of a text in their order, without empty ones; they belong to the caller."""
    found = (msgspec.json.decode(_read(part)) for part in re.split(r"^---\n", text, flags=re.MULTILINE))
    return [each for each in found if each]


@cache
def _read(document: str) -> bytes:
    return msgspec.json.encode(yaml.load(document, yaml.CSafeLoader))
