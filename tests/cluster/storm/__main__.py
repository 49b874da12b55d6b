"""Plays storms: ``python -m tests.cluster.storm SEED [SEED ...]``, each told in full if something was wrong."""

import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.storm.run import storm

for seed in map(int, sys.argv[1:]):
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        story = storm(Path(folder), seed)
    title = f"seed {seed}, {time.perf_counter() - began:.1f} s"
    sys.stdout.write(f"{story.text(title)}\n" if story.problems else f"{title}: right\n")
    sys.stdout.flush()
