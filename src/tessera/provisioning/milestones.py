"""The way of a node from "somebody needs it" to "its workload runs", as moments.

A moment that nobody saw is unknown, and stays so: durations around it are unknown too, never zero and never negative.
The phase before a milestone is named after it, so phases of a complete record sum to its total.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

#: Annotation of a node: its :class:`Record` as JSON.
PROVISIONING_ANNOTATION = "tessera.dev/provisioning"


class Milestone(Enum):
    """Moments in the order in which they are expected."""

    REQUESTED = "requested"
    VM = "vm"
    REGISTERED = "registered"
    READY = "ready"
    LABELLED = "labelled"
    PULLED = "pulled"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    VALIDATED = "validated"
    ALLOCATABLE = "allocatable"
    WORKLOAD = "workload"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one node's way.

    Attributes:
        node: the node's name.
        uid: the Node object's uid; a node that comes back under its name is another one.
        at: seconds since 1970 by milestone; what is not known is not there.
        group: the node group it belongs to, as the autoscaler names it; empty if unknown.
        pool: the driver pool as text.
        strategy: how it came to its driver.
        image: the driver's image.
        simulated: it happened in the lab.
    """

    node: str
    uid: str = ""
    at: Mapping[Milestone, float] = {}
    group: str = ""
    pool: str = ""
    strategy: str = ""
    image: str = ""
    simulated: bool = False
