"""The real Helm, which comes as a wheel: beside this Python, and not always on the search path."""

import sysconfig
from pathlib import Path

HELM = str(Path(sysconfig.get_path("scripts")) / "helm")
