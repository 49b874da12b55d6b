"""Property tests repeat themselves in `make test`; `make soak` searches anew each time."""

import os

from hypothesis import HealthCheck, settings

# On a machine with other work, how long an input takes says nothing about the test.
PATIENT = [HealthCheck.too_slow]
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=PATIENT)
settings.register_profile("searching", print_blob=True, deadline=None, suppress_health_check=PATIENT)
settings.load_profile("searching" if os.environ.get("TESSERA_SEARCH") else "repeatable")
