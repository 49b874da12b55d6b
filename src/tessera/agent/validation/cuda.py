"""CUDA's driver API, as far as one small program needs it: ``libcuda.so.1`` through ctypes.

The library comes with the driver, and into a container with the container runtime; a program that finds it there and
computes with it proves both. No package of CUDA is needed, whose size would be a hundred times that of the program.

Names and result codes are those of cuda.h. An error names the call, and says with ``cuGetErrorString`` what is wrong.
"""

from ctypes import CDLL, byref, c_char_p, c_int
from typing import Any

LIBRARY = "libcuda.so.1"
#: ``CUDA_ERROR_NO_DEVICE``: no card, or none that may be computed on as a whole.
NO_DEVICE = 100


class CudaError(Exception):
    """A step of the validation failed; ``code`` is CUDA's ``CUresult``, 0 where CUDA itself is content."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def load_cuda() -> Any:
    """The driver's library.

    Raises:
        CudaError: the loader does not find it.
    """
    try:
        return CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(
            f"{LIBRARY} cannot be loaded ({error}): the container runtime has not put the driver's libraries into this"
            " container; run it with runtimeClassName nvidia, NVIDIA_VISIBLE_DEVICES=all and"
            " NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from error


class Cuda:
    """CUDA, initialised.

    Args:
        library: ``libcuda``, loaded.

    Raises:
        CudaError: it cannot be initialised; with :data:`NO_DEVICE` if there is nothing to compute on.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Does one call.

        Raises:
            CudaError: CUDA refuses it, or the driver is too old to know it.
        """
        try:
            found = getattr(self._library, function)
        except AttributeError:
            raise CudaError(f"{function}: this driver does not have it") from None
        if code := found(*arguments):
            raise CudaError(f"{function}: {self._text(code)} (CUresult {code})", code)

    def version(self) -> str:
        """The newest CUDA that the driver knows, such as ``12.4``."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def count(self) -> int:
        """How many devices there are: whole cards, or the first MIG device of those that are cut."""
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def _text(self, code: int) -> str:
        text = c_char_p()
        if self._library.cuGetErrorString(code, byref(text)) or text.value is None:
            return "an error that this driver has no words for"
        return text.value.decode(errors="replace")
