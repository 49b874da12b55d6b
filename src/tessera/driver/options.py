"""What the driver part of the controller is told at start."""

import msgspec

from tessera.driver.build.settings import BuildSettings


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of :class:`tessera.driver.run.Drivers`.

    Attributes:
        identity: the pod that this process runs in, from which Tessera's own image is known.
        image: Tessera's own image, for init containers and validations; empty: that of the process's own pod.
        builds: how images are built in the cluster.
    """

    identity: str = ""
    image: str = ""
    builds: BuildSettings = BuildSettings()
