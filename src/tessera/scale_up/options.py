"""Options of the search for new nodes."""

from dataclasses import dataclass
from enum import Enum


class ScaleUpMethod(Enum):
    """How new nodes are asked for."""

    OFF = "off"
    PLACEHOLDER = "placeholder"
    PROVISIONING_REQUEST = "provisioning-request"
    #: ProvisioningRequests where the cluster serves them and an autoscaler accepts them, else placeholders.
    AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ScaleUpOptions:
    """Options of the search for new nodes.

    Attributes:
        method: how new nodes are asked for; without groups in the file nothing is asked for.
        image: image that placeholders name; it is never pulled.
    """

    method: ScaleUpMethod = ScaleUpMethod.AUTO
    image: str = "registry.k8s.io/pause:3.10"
