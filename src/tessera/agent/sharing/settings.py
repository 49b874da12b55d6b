"""The sharing settings of a node: the desired profile, and the installation's defaults where a profile is silent."""

from typing import Protocol

from tessera.agent.base.desired_config import DesiredSharing
from tessera.agent.sharing.allocate_response import AllocateOptions
from tessera.agent.sharing.offer import AppliedSharing
from tessera.api.sharing.profile import MigStrategy


class SharingConfig(Protocol):
    """Follows the labels and ConfigMaps; see :class:`tessera.agent.config.config_watcher.ConfigWatcher`."""

    @property
    def sharing(self) -> DesiredSharing:
        """The sharing profile to follow now."""
        ...

    def profile_applied(self, name: str, text: str, /) -> None:
        """Notes that a profile of this name and text is in force."""
        ...


class SharingSettings:
    """The settings that the advertiser follows.

    Args:
        config: the desired profile.
        mig_strategy: the installation's strategy; a profile's own takes precedence.
        options: how containers learn of their devices; a profile's flags take precedence.
    """

    def __init__(self, config: SharingConfig, mig_strategy: MigStrategy, options: AllocateOptions) -> None:
        self.config = config
        self.mig_strategy = mig_strategy
        self._options = options

    def options(self, applied: AppliedSharing | None) -> AllocateOptions:
        """The options under the applied profile; ``None`` before the first one is applied."""
        return self._options if applied is None else self._options.with_flags(applied.profile.flags)
