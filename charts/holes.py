"""Objects with places for Helm's expressions, and their YAML.

A manifest is data, and a template is text. So an expression takes the place of a value as a marked string, and the
marks are replaced after the object was written as YAML.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

_HOLE = re.compile(r"(')?HOLE-([0-9a-f]{32})\1?")
_BLOCK = re.compile(r"^( *)(?:- )?BLOCK-([0-9a-f]{32})(?:: null)?$", re.MULTILINE)

#: The expressions by their digests. A mark is short, since YAML writes long keys in another form.
_EXPRESSIONS: dict[str, str] = {}


def hole(expression: str) -> str:
    """A value that Helm computes, as in ``hole(".Release.Name")``."""
    return f"HOLE-{_remember(expression)}"


def block(expression: str) -> str:
    """Lines that Helm computes: a key with the value None of a mapping, or an item of a list.

    Args:
        expression: its result is YAML, a part of the surrounding mapping or list.
    """
    return f"BLOCK-{_remember(expression)}"


def _remember(expression: str) -> str:
    digest = hashlib.sha256(expression.encode()).hexdigest()[:32]
    _EXPRESSIONS[digest] = expression
    return digest


def write(objects: Sequence[Mapping[str, Any]]) -> str:
    """Returns the objects as YAML documents of a template; braces in their texts are printed as they are."""
    return "".join(f"---\n{_fill(_dump(each))}" for each in objects)


def _dump(manifest: Mapping[str, Any]) -> str:
    text: str = yaml.dump(manifest, Dumper=yaml.CSafeDumper, sort_keys=False, width=2**20, allow_unicode=True)
    return text


def _fill(text: str) -> str:
    escaped = text.replace("{{", '{{ "{{" }}')
    lines = _BLOCK.sub(lambda found: f"{{{{- {_EXPRESSIONS[found[2]]} | nindent {len(found[1])} }}}}", escaped)
    return _HOLE.sub(lambda found: f"{{{{ {_EXPRESSIONS[found[2]]} }}}}", lines)
