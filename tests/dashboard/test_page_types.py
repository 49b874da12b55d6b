"""The page's types in TypeScript name the fields of the documents that Python makes."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tessera.dashboard import documents

SOURCE = (Path(__file__).parents[2] / "web" / "src" / "documents.ts").read_text(encoding="utf-8")
#: Names on the page that differ from those in Python.
NAMES = {
    "LeaseDocument": "Lease",
    "HistoryDocument": "FleetHistory",
    "NodeDocument": "NodeState",
}
#: Small documents that are written inside others.
INLINE = {"PhaseDocument", "PromiseDocument"}
STRUCTS = [
    each
    for each in vars(documents).values()
    if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__name__ not in INLINE
]


def fields_of(name: str) -> dict[str, bool]:
    """The fields of an interface of the page; True for one that may be missing."""
    (body,) = re.findall(rf"^export interface {name} \{{\n(.*?)^\}}", SOURCE, re.DOTALL | re.MULTILINE)
    return {field: optional == "?" for field, optional in re.findall(r"^  (\w+)(\??):", body, re.MULTILINE)}


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda each: each.__name__)
def test_the_page_knows_each_field_and_which_may_be_missing(kind: type[msgspec.Struct]) -> None:
    name = NAMES.get(kind.__name__, kind.__name__.removesuffix("Document"))
    omits = kind.__struct_config__.omit_defaults
    expected = {each.encode_name: not each.required and omits for each in msgspec.structs.fields(kind)}
    assert fields_of(name) == expected


def test_every_document_has_a_type() -> None:
    assert set(get_args(documents.Document)) <= set(STRUCTS)
