"""Limits on text of others that a message, a log, a status or a terminal shows."""

from tessera.limits import Limit

ECHOED = Limit(
    200,
    "characters",
    "text of others that a message repeats",
    "a reader finds the mistake in less; a longer text hides the message around it",
)
LINE_SHOWN = Limit(
    4_000,
    "characters",
    "one line that a command prints",
    "about two screens of a terminal; longer lines of others scroll the answer away",
)
KEY_SHOWN = Limit(
    320,
    "characters",
    "a key of a file in a message",
    "Kubernetes' longest keys, a prefix of 253 and a name of 63 characters, fit",
)
VALUE_SHOWN = Limit(
    60,
    "characters",
    "a value of a file in a message",
    "the path beside it says where the value is",
)
YAML_FAULT_SHOWN = Limit(
    1_000,
    "characters",
    "the YAML reader's message about a file",
    "a reader's longest explanation fits; it repeats lines of the file",
)
FACT_SHOWN = Limit(
    1_000,
    "characters",
    "the verdict and each fact of `tessera why`",
    "a scheduler's message about a large cluster fits; a tenant's text cannot push the answer off the screen",
)
EVENT_SHOWN = Limit(
    300,
    "characters",
    "an event's text in `tessera why`",
    "kubectl shows all of it; three events stay on one screen",
)
CONDITION_MESSAGE = Limit(
    1_000,
    "characters",
    "message of a condition that Tessera writes on a Node or a pod",
    "each write of the Node carries it; a file with many mistakes lists them all in `tessera config check`",
)
KUBELET_WORDS = Limit(
    300,
    "characters",
    "kubelet's message about a driver pod's container, in a status",
    "kubelet's messages fit; an image's name in them is the tenant's",
)
BUILD_WORDS = Limit(
    600,
    "characters",
    "last words of a build's pod, in a status",
    "the last lines of a failed build fit",
)
