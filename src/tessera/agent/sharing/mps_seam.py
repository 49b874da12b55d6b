"""The MPS daemons as the static side needs them."""

from collections.abc import Mapping
from typing import Protocol

from tessera.agent.base.desired_config import MpsPlan
from tessera.agent.sharing.allocate_response import MpsClientEdits


class MpsDaemonPool(Protocol):
    """The MPS daemons as the advertiser needs them; see :class:`tessera.agent.mps.daemons.MpsDaemons`."""

    def set_plans(self, plans: Mapping[str, MpsPlan], /) -> None:
        """Sets the daemons that must run, by resource."""
        ...

    def ready(self, resource: str, gpu: str, /) -> bool:
        """True if the daemon of a resource serves clients of a card."""
        ...

    def problem(self, resource: str, /) -> str:
        """Why the daemon of a resource does not serve."""
        ...

    def container_edits(self, resource: str, /) -> MpsClientEdits:
        """Edits that a client of the resource's daemon needs."""
        ...
