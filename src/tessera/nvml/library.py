"""The driver's library where the loader does not find it: below the root of a driver container.

A process that outlives a driver has to load the next one's library. The loader gives a library that is loaded under the
same path again, whatever lies there by then, so the former one is unloaded first, as NVIDIA's own Go binding does.

``nvidia-ml-py`` keeps the library and the functions that it looked up in its module: a process has one at a time.
"""

import _ctypes
from ctypes import CDLL
from pathlib import Path
from typing import Any

from tessera.nvml.errors import DriverNotLoaded

NAME = "libnvidia-ml.so.1"
#: Folders of libraries below a root, by distribution and architecture.
_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib")


def find_library(root: Path, name: str = NAME) -> Path | None:
    """A library below a driver's root; ``None`` if it is not there."""
    return next((path for folder in _FOLDERS if (path := root / folder / name).is_file()), None)


def load(binding: Any, path: Path) -> None:
    """Has the binding use this library from now on. NVML must not be open.

    Args:
        binding: the module ``pynvml``.
        path: the library.

    Raises:
        DriverNotLoaded: it cannot be loaded.
    """
    try:
        library = CDLL(str(path))
    except OSError as error:
        raise DriverNotLoaded(f"{path} cannot be loaded ({error})") from error
    _use(binding, library)


def unload(binding: Any) -> None:
    """Has the binding forget its library, and the process too. NVML must not be open."""
    library = binding.nvmlLib
    _use(binding, None)
    if isinstance(library, CDLL):
        _ctypes.dlclose(library._handle)  # noqa: SLF001 - ctypes has no other way to let go of a library


def _use(binding: Any, library: CDLL | None) -> None:
    binding.nvmlLib = library
    binding._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - functions of the former library
