"""Property tests repeat themselves in `make test`; `make soak` searches anew each time."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("searching", print_blob=True)
settings.load_profile("searching" if os.environ.get("TESSERA_SEARCH") else "repeatable")
