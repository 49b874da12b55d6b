"""Decides which entries of a ConfigMap to write, so that no edit is ever lost. Pure.

The manifests make the two ConfigMaps without entries, so that no tool that applies manifests ever overwrites one. The
controller fills them in, and an annotation has the digest of each entry that it wrote.

Rules:

- An entry whose text has the digest in the annotation is as Tessera wrote it. It is replaced when a new version brings
  another text, and removed when a new version does not have it any more.
- An entry with another text was edited. It stays, and so does its digest: it is edited until it has that text again.
- An entry with a digest that is not there was removed by somebody. It stays away.
- A ConfigMap without the annotation that has entries is somebody's own: nothing is added. An additional profile could
  change which profile nodes without a label have, and an additional layout could have the name of another.
"""

import hashlib
from collections.abc import Mapping

import msgspec

#: Most characters: the annotation with the digests of the profiles and layouts that Tessera brought. It has 30
#: characters for each of its entries; a longer one is somebody's, and all entries count as edited.
DEFAULT_ENTRIES = 16_384


#: Digests of the entries that Tessera wrote, as a JSON object.
ANNOTATION = "tessera.dev/default-entries"


class EntryChanges(msgspec.Struct, frozen=True):
    """A change of a ConfigMap.

    Attributes:
        data: new text by key; ``None`` removes the entry.
        digests: the annotation's value afterwards.
    """

    data: Mapping[str, str | None]
    digests: str


def plan_entries(present: Mapping[str, str], annotation: str | None, wanted: Mapping[str, str]) -> EntryChanges | None:
    """Returns the change of a ConfigMap; ``None`` if it is as it should be.

    Args:
        present: its entries.
        annotation: the annotation's value; ``None`` if it has none.
        wanted: the entries that this version brings.
    """
    if annotation is None and present:
        return None
    written = _read_digests(annotation or "{}")
    data: dict[str, str | None] = {}
    digests: dict[str, str] = {}
    for key, text in wanted.items():
        if key not in written and key in present:
            continue  # somebody's own entry, with a name that this version brings too
        if key not in written or (present.get(key) != text and _is_as_written(present, key, written)):
            data[key] = text
        digests[key] = digest(text) if key in data or present.get(key) == text else written[key]
    for key in written.keys() - wanted.keys():
        if _is_as_written(present, key, written):
            data[key] = None
        elif key in present:
            digests[key] = written[key]
    encoded = msgspec.json.encode(dict(sorted(digests.items()))).decode()
    if not data and encoded == annotation:
        return None
    return EntryChanges(data=data, digests=encoded)


def _is_as_written(present: Mapping[str, str], key: str, written: Mapping[str, str]) -> bool:
    return key in present and digest(present[key]) == written[key]


def digest(text: str) -> str:
    """The digest of an entry: enough of SHA-256 to tell edits, not to withstand an attack of the entry's own author."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_digests(annotation: str) -> Mapping[str, str]:
    """The digests in an annotation; none if somebody spoiled it, so that all present entries count as edited."""
    if len(annotation) > DEFAULT_ENTRIES:
        return {}
    try:
        return msgspec.json.decode(annotation.encode(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}
