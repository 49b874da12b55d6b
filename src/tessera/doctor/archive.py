"""A support archive: bounded files without secrets in a ``tar.gz``, with a manifest of what is in it and what is not.

The archive is made in memory and written at once, readable for its owner only. Times and owners in it say nothing about
the machine that made it. Rules of :class:`Redaction`:

- Of an object, values stay that Kubernetes or NVIDIA define; what people may write freely is left out: the value of
  each environment variable, and of labels and annotations under names that are not in :data:`KNOWN`.
- The value of a key whose name speaks of a secret is left out, except where the format keeps a mere name there.
- In every text, whatever has the form of a token, a key, a password or a login in an address is replaced.
- A text never has a value of an environment, of eight characters or more: those values are searched for.

What is left out is replaced by a mark, so that a reader sees that there was something. Of a tenant's pod, a support
case gets only who it is, what it asks for, and how far it is.
"""

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.names import OWN_DOMAIN
from tessera.limits import Limit
from tessera.text import one_line

ARCHIVE_SIZE = Limit(
    64 * 1024 * 1024,
    "bytes",
    "all files of a support archive together, before they are compressed",
    "text compresses to about a tenth, which still goes by mail",
)

#: Most bytes: one file of a support archive. The objects of 500 nodes have about as much; of a log the last part
#: counts.
ARCHIVE_FILE = 4 * 1024 * 1024

FOLDER = "tessera-support"
MANIFEST = "manifest.json"


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file in the archive.

    Attributes:
        path: below the archive's folder.
        what: its content.
        size: bytes.
        sha256: digest of the content.
        cut: bytes that were cut off; 0 if it is whole.
    """

    path: str
    what: str
    size: int
    sha256: str
    cut: int = 0


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not in the archive, and why."""

    what: str
    why: str


class Archive:
    """Gathers files.

    Attributes:
        files: what is in it, in order.
        left_out: what is not.
    """

    def __init__(self) -> None:
        self.files: list[ArchivedFile] = []
        self.left_out: list[LeftOut] = []
        self._contents: list[bytes] = []
        self._size = 0

    def add_json(self, path: str, what: str, value: Any) -> None:
        """Adds a value as indented JSON."""
        self.add(path, what, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")

    def add(self, path: str, what: str, content: bytes, *, from_end: bool = False) -> None:
        """Adds a file, cut at its bound; nothing of it if the archive is full.

        Args:
            path: below the archive's folder; other characters than those of names are replaced.
            what: its content, for the manifest.
            content: the bytes.
            from_end: keep the last part if the file is too long, as of a log.
        """
        room = min(ARCHIVE_FILE, ARCHIVE_SIZE - self._size)
        if content and room <= 0:
            self.omit(f"{what} ({path})", f"the archive is full: it holds {ARCHIVE_SIZE:,} bytes")
            return
        kept = content if len(content) <= room else content[-room:] if from_end else content[:room]
        self._size += len(kept)
        self._contents.append(kept)
        self.files.append(
            ArchivedFile(
                path=_safe(path),
                what=one_line(what, 300),
                size=len(kept),
                sha256=hashlib.sha256(kept).hexdigest(),
                cut=len(content) - len(kept),
            )
        )

    def omit(self, what: str, why: str) -> None:
        """Notes that something is not in the archive."""
        self.left_out.append(LeftOut(what=one_line(what, 300), why=one_line(why, 500)))

    def write(self, path: Path, **about: Any) -> int:
        """Writes the archive, readable for its owner only; returns its size.

        Args:
            path: an existing file is replaced.
            about: further entries of the manifest.

        Raises:
            OSError: the file cannot be written.
        """
        manifest = {**about, "files": self.files, "leftOut": self.left_out}
        packed = self._pack(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(packed)
        return len(packed)

    def _pack(self, manifest: bytes) -> bytes:
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, content in self._members(manifest):
                entry = tarfile.TarInfo(f"{FOLDER}/{name}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()

    def _members(self, manifest: bytes) -> Iterator[tuple[str, bytes]]:
        yield MANIFEST, manifest
        for each, content in zip(self.files, self._contents, strict=True):
            yield each.path, content


def _safe(path: str) -> str:
    """A path that stays below its folder: names of objects have only these characters, others may have any."""
    clean = re.sub(r"[^A-Za-z0-9._/-]", "_", path)
    return "/".join(part for part in clean.split("/") if part.strip("."))


ARCHIVE_VALUES = Limit(
    5_000,
    "values",
    "values of containers' environments that are searched for in the texts of a support archive",
    "each costs one search through all texts; the manifest tells if there were more",
)

#: Stands for what was left out.
MARK = "(left out)"

#: Domains of labels and annotations whose values are kept; a subdomain counts too.
KNOWN = (
    "cluster-api.io",
    "feature.node.kubernetes.io",
    "inference.redhat.com",
    "instaslice.redhat.com",
    "karpenter.sh",
    "kubernetes.io",
    "kueue.x-k8s.io",
    "nvidia.com",
    "openshift.io",
    "tessera.dev",
    "x-k8s.io",
)
#: Annotations of a known domain that repeat whole objects.
_COPIES = frozenset({"kubectl.kubernetes.io/last-applied-configuration", "deprecated.daemonset.template.generation"})
#: Words that speak of a secret, in names of keys, fields and options.
_WORDS = (
    "pass(?:word|wd|phrase)",
    "token",
    "secret",
    "credential",
    "api[_-]?key",
    "private[_-]?key",
    "authorization",
    "kubeconfig",
)
_WORD = rf"(?:{'|'.join(_WORDS)})"
_SPEAKING_KEY = re.compile(rf"^auth$|{_WORD}", re.IGNORECASE)
#: Keys that name an object, and do not hold its content.
_REFERENCES = frozenset({"imagePullSecret", "secretName"})
#: The start of ``NAME: VALUE`` and ``--NAME VALUE``. The bounds keep the time linear in the text's length.
_FIELD = rf"(?P<name>(?:[\w.-]{{0,40}}{_WORD}[\w.-]{{0,40}}|\bauth)[\"']?\s{{0,4}}[:=]\s{{0,4}})"
_OPTION = rf"(?P<name>--[\w-]{{0,40}}{_WORD}[\w-]{{0,40}}[= ])"
_NOT_DONE = r"(?!\(left out\))"
_PRIVATE = r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)"
_ISSUED = r"\b(?:gh[opsu]_|github_pat_|glpat-|xox[abp]-|nvapi-|hf_|sk-|AKIA)[A-Za-z0-9_-]{8,}"
_TEXT_RULES: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern, flags), instead)
    for pattern, flags, instead in (
        (_PRIVATE, re.DOTALL, MARK),
        (r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", 0, MARK),
        (r"(?<=://)[^\s/@\"']+(?=@)", 0, MARK),
        (r"\b(Bearer|Basic)\s{1,4}[A-Za-z0-9+/=._~-]{6,}", re.IGNORECASE, rf"\1 {MARK}"),
        (_ISSUED, 0, MARK),
        (rf"{_FIELD}(?P<quote>[\"']){_NOT_DONE}(?:(?!(?P=quote)).)+", re.IGNORECASE, rf"\g<name>\g<quote>{MARK}"),
        (rf"{_FIELD}{_NOT_DONE}[^\s\"',;}}]+", re.IGNORECASE, rf"\g<name>{MARK}"),
        (rf"{_OPTION}{_NOT_DONE}\S+", re.IGNORECASE, rf"\g<name>{MARK}"),
    )
)
#: Shortest value of an environment that is searched for: shorter ones are words of every log.
_SHORTEST = 8


class Redaction:
    """Takes out what must not leave the cluster.

    Args:
        values: values of environments.
        names: names of objects of the cluster, which stay although a variable may have the same text.

    Attributes:
        unsearched: values beyond the limit, which are not searched for.
    """

    def __init__(self, values: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        found = sorted({each for each in values if len(each) >= _SHORTEST} - set(names), key=len, reverse=True)
        self._values = found[:ARCHIVE_VALUES]
        self.unsearched = len(found) - len(self._values)

    def text(self, text: str) -> str:
        """A text without secrets."""
        for pattern, instead in _TEXT_RULES:
            text = pattern.sub(instead, text)
        for value in self._values:
            text = text.replace(value, MARK)
        return text

    def object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """An object of the API without secrets."""
        cleaned: dict[str, Any] = {}
        for key, item in value.items():
            if key == "managedFields":
                continue
            if key in {"labels", "annotations"} and isinstance(item, Mapping):
                cleaned[key] = self._named(item)
            elif key == "env" and isinstance(item, list):
                cleaned[key] = [self._variable(each) for each in item]
            elif isinstance(item, str) and key not in _REFERENCES and _SPEAKING_KEY.search(key):
                cleaned[key] = MARK
            else:
                cleaned[key] = self._value(item)
        return cleaned

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.object(value)
        if isinstance(value, list | tuple):
            return [self._value(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def _named(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._value(text) if _is_known(key) else MARK for key, text in texts.items() if key not in _COPIES}

    def _variable(self, variable: Any) -> Any:
        if not isinstance(variable, Mapping):
            return MARK
        source = {"valueFrom": self._value(variable["valueFrom"])} if "valueFrom" in variable else {}
        return {"name": variable.get("name"), **({"value": MARK} if "value" in variable else {}), **source}


def _is_known(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return bool(slash) and any(domain == known or domain.endswith(f".{known}") for known in KNOWN)


def environment_values(pod: Mapping[str, Any]) -> Iterable[str]:
    """The values of all variables in a pod's manifest."""
    spec = pod.get("spec") or {}
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            for variable in container.get("env") or ():
                if isinstance(variable.get("value"), str):
                    yield variable["value"]


#: Parts of the spec that decide the node.
_PLACING = (
    "nodeName",
    "nodeSelector",
    "tolerations",
    "schedulingGates",
    "schedulerName",
    "priority",
    "priorityClassName",
)
_CONTAINER_STATES = ("ready", "restartCount", "started")
_PREFIXES = ("nvidia.com/", "instaslice.redhat.com/", OWN_DOMAIN)


def uses_gpus(pod: Mapping[str, Any]) -> bool:
    """True if a container asks for a GPU, or the pod has annotations of Tessera."""
    annotations = pod["metadata"].get("annotations") or {}
    return any(name.startswith(OWN_DOMAIN) for name in annotations) or any(_amounts(each) for each in _containers(pod))


def gpu_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Names, requests and states of a pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp")
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    owners = [{key: each.get(key) for key in ("kind", "name")} for each in pod["metadata"].get("ownerReferences") or ()]
    return {
        "metadata": {**metadata, "owners": owners},
        "spec": {
            **{key: spec[key] for key in _PLACING if key in spec},
            "containers": [{"name": each.get("name"), "resources": _amounts(each)} for each in _containers(pod)],
        },
        "status": {
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "message": status.get("message"),
            "conditions": status.get("conditions") or [],
            "containers": [_state(each) for each in status.get("containerStatuses") or ()],
        },
    }


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = pod.get("spec") or {}
    return [each for kind in ("initContainers", "containers") for each in spec.get(kind) or ()]


def _amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    every = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: amount for name, amount in every.items() if name.startswith(_PREFIXES)}


def _state(status: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a container: its reason, and the message of a waiting one, which is kubelet's."""
    states = {
        name: {key: value[key] for key in ("reason", "message", "exitCode") if key in value and name != "terminated"}
        | ({key: value[key] for key in ("reason", "exitCode") if key in value} if name == "terminated" else {})
        for name, value in (status.get("state") or {}).items()
    }
    return {"name": status.get("name"), **{key: status.get(key) for key in _CONTAINER_STATES}, "state": states}
