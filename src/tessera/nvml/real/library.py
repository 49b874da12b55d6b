"""The driver's library where the loader does not find it: below the root of a driver container.

A process that outlives a driver must load the next driver's library. The loader returns a library that is already
loaded under the same path, whatever file is there now, so the old one is unloaded first, as in NVIDIA's own Go binding.

``nvidia-ml-py`` keeps the library and the functions that it looked up in its module: a process has one at a time.
"""

import _ctypes
import os
from ctypes import CDLL
from pathlib import Path
from typing import Any

from tessera.nvml.errors import DriverNotLoaded

NAME = "libnvidia-ml.so.1"
#: Folders of libraries below a root, by distribution and architecture.
_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib")
#: The driver's libraries that its programs load.
_LIBRARIES = ("libcuda.so*", "libnvidia-*.so*")


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
    handle = getattr(binding.nvmlLib, "_handle", None)
    _use(binding, None)
    if handle is not None:
        _ctypes.dlclose(handle)  # ctypes has no other way to let go of a library


def program_environment(root: Path, links: Path) -> dict[str, str]:
    """Returns the environment for programs of a driver below a root: ``PATH`` and ``LD_LIBRARY_PATH``.

    The driver's libraries lie beside the C library of another system, which must not be loaded here. So only they are
    named, by links in a folder of their own.

    Args:
        root: the driver's root.
        links: the folder; its content is replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    links.mkdir(parents=True, exist_ok=True)
    for old in links.iterdir():
        old.unlink()
    found = find_library(root)
    paths = [] if found is None else [path for pattern in _LIBRARIES for path in found.parent.glob(pattern)]
    for path in paths:
        (links / path.name).symlink_to(path)
    own = os.environ.get("PATH", os.defpath)
    return {"PATH": f"{own}:{root / 'usr/bin'}:{root / 'usr/sbin'}", "LD_LIBRARY_PATH": str(links)}


def _use(binding: Any, library: CDLL | None) -> None:
    binding.nvmlLib = library
    binding._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - functions of the former library
