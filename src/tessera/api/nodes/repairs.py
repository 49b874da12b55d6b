"""What Tessera does by itself about cards with faults: ``repairs.yaml`` in the ConfigMap ``tessera-repairs``.

The controller and the agents follow the same file, so a sentence about the next step names the step that will happen::

    evict: true
    evictClaims: true
    evictNodes: 2
    tolerationSeconds: 3600
    preflight: all
    podPreflight: true
    reboot: annotation
    rebootAnnotation: example.com/reboot=true

Nothing is on by default. The file is read strictly: an unknown key or a wrong value refuses all of it.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from tessera.api.documents import convert_document
from tessera.api.names import FAULT_TOLERATION, REBOOT_REQUESTED, REPAIRS_KEY, REPAIRS_MAP, SYSTEM_NAMESPACES
from tessera.text import list_names

#: Most digits: a pod's tessera.dev/fault-toleration-seconds; another value counts as 0. 30 years; the administrator's
#: tolerationSeconds bounds it.
FAULT_TOLERATION_DIGITS = 9

#: Seconds from an error to the eviction of pods, in which an error that passes can pass.
EVICTION_DELAY = 60.0
#: Owners that would make a pod anew on the same node.
_STAYING_OWNERS = frozenset({"DaemonSet", "Node"})
#: ``example.com/reboot`` or ``example.com/reboot=true``; keys are qualified names of Kubernetes, with a domain.
ANNOTATION = r"[a-z0-9][a-z0-9.-]{0,251}[a-z0-9]/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?(=[!-~]{0,253})?"
ANNOTATION_RULE = "is no annotation with a domain; write example.com/reboot=true"
#: Domains whose annotations are not the administrator's; nor are those of domains below.
_TAKEN = ("tessera.dev", "kubernetes.io", "k8s.io")


class PreflightMode(StrEnum):
    """The cards that must pass a preflight before they are allocated."""

    NONE = "none"
    #: Those that were reset, or whose node was rebooted for them.
    REPAIRS = "repairs"
    #: New ones too.
    ALL = "all"


class RebootWay(StrEnum):
    """How a node is rebooted for a card that needs it."""

    NONE = "none"
    #: By the host's systemd, at once, when no pod holds any card of it.
    SYSTEMCTL = "systemctl"
    #: By whoever watches the host's ``/var/run/reboot-required``, such as kured, and drains the node first.
    SENTINEL = "sentinel"
    #: By whoever watches an annotation of the Node, and drains it first.
    ANNOTATION = "annotation"
    #: By a command of the administrator on the host.
    COMMAND = "command"

    @property
    def drains(self) -> bool:
        """True if whoever reboots the node empties it first, so that pods may hold its cards."""
        return self in {RebootWay.SENTINEL, RebootWay.ANNOTATION}


_Word = Annotated[str, msgspec.Meta(min_length=1)]


class Repairs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The content of the file.

    Attributes:
        evict: evict pods with an owner from a card that must be empty to be repaired.
        evict_claims: the devices of a card with a fault get a taint that ends the pods with ResourceClaims for them.
        evict_nodes: nodes from whose cards pods are evicted at a time.
        toleration_seconds: longest time that a pod may stay on such a card by its annotation.
        preflight: the cards that are tested before they are allocated.
        pod_preflight: a pod with the annotation for it has its cards tested before its first container starts.
        reboot: how a node is rebooted for a card that needs it.
        reboot_annotation: for the way ``annotation``: its key, and its value after ``=`` (``true`` without).
        reboot_command: for the way ``command``: the program with its path on the host, and its arguments.
    """

    evict: bool = False
    evict_claims: bool = False
    evict_nodes: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    toleration_seconds: Annotated[int, msgspec.Meta(ge=0, le=31_536_000)] = 3600
    preflight: PreflightMode = PreflightMode.NONE
    pod_preflight: bool = False
    reboot: RebootWay = RebootWay.NONE
    reboot_annotation: Annotated[str, msgspec.Meta(max_length=600)] = ""
    reboot_command: tuple[_Word, ...] = ()

    @property
    def tests_cards(self) -> bool:
        """True if any card is ever tested."""
        return self.pod_preflight or self.preflight is not PreflightMode.NONE

    @property
    def annotation(self) -> tuple[str, str]:
        """Key and value of the annotation that asks for a reboot."""
        key, _, value = self.reboot_annotation.partition("=")
        return key, value or "true"

    @property
    def summary(self) -> str:
        """What is done, for people."""
        done = [
            *(["pods with an owner are evicted"] if self.evict else ()),
            *(["pods with ResourceClaims are deleted"] if self.evict_claims else ()),
            *([f"preflight of cards: {self.preflight}"] if self.preflight is not PreflightMode.NONE else ()),
            *(["preflight of pods that ask for it"] if self.pod_preflight else ()),
            *([f"reboots by {self.reboot}"] if self.reboot is not RebootWay.NONE else ()),
        ]
        return list_names(done, len(done)) if done else "nothing but resets of empty ones"

    def eviction_time(self, since: float, toleration: float = 0.0) -> float:
        """Unix time from which a pod may be evicted.

        Args:
            since: Unix time from which its card must be empty.
            toleration: seconds for which the pod wants to stay.
        """
        return since + max(EVICTION_DELAY, min(toleration, self.toleration_seconds))


def parse_repairs(text: str, where: str = f"ConfigMap {REPAIRS_MAP}: {REPAIRS_KEY}") -> Repairs:
    """Reads the file; an empty one asks for nothing.

    Args:
        text: its content.
        where: its name in messages.

    Raises:
        ValueError: the text names field, value and rule.
    """
    found = convert_document(text, Repairs, where)
    if problem := _find_problem(found):
        raise ValueError(f"{where}: {problem}; correct the file")
    return found


def _find_problem(repairs: Repairs) -> str:
    """The first mistake that lies in several fields, or in the form of a text; empty if there is none."""
    annotation, command = repairs.reboot_annotation, repairs.reboot_command
    if repairs.reboot is RebootWay.ANNOTATION and not annotation:
        return "rebootAnnotation: missing; reboot: annotation needs it, as example.com/reboot=true"
    if annotation and not re.fullmatch(ANNOTATION, annotation):
        return f'rebootAnnotation: "{annotation[:100]}" {ANNOTATION_RULE}'
    if annotation.partition("/")[0].endswith(_TAKEN):
        return f'rebootAnnotation: "{annotation[:100]}" belongs to Tessera or Kubernetes; use a domain of yours'
    if repairs.reboot is RebootWay.COMMAND and not command:
        return "rebootCommand: missing; reboot: command needs it, as [/usr/local/bin/reboot-node]"
    if command and (not command[0].startswith("/") or any("\0" in word for word in command)):
        return f'rebootCommand: "{command[0][:100]}" is no path on the host; begin it with /, without a shell'
    return ""


def is_made_anew(namespace: str, owner: str, own_namespace: str) -> bool:
    """True for a pod that may be evicted: its owner makes it anew elsewhere, and it is no part of the system.

    Args:
        namespace: of the pod.
        owner: kind of the controller that owns it; empty for none.
        own_namespace: Tessera's.
    """
    system = namespace in SYSTEM_NAMESPACES or namespace == own_namespace
    return bool(owner) and owner not in _STAYING_OWNERS and not system


def asks_for_reboot(annotations: Mapping[str, str], boot: str) -> bool:
    """True while the agent of a node asks for a reboot: its annotation has the id of the boot that is to end."""
    return bool(boot) and annotations.get(REBOOT_REQUESTED) == boot


def read_toleration(annotations: Mapping[str, str]) -> float:
    """Seconds for which a pod wants to stay on a card that must be empty; 0 for a value that is no number of them."""
    text = annotations.get(FAULT_TOLERATION, "")
    known = text.isascii() and text.isdigit() and len(text) <= FAULT_TOLERATION_DIGITS
    return float(text) if known else 0.0
