"""A life of a store to be killed in: `python -m tests.support.store_process STATE_DIR SEED`.

Writes random decisions for as long as it lives and says how many are committed. Its bounds are so
small that it trims the journal and starts the log anew all the time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nri_policy.store import compaction, writer
from nri_policy.store import store as store_module
from tests.support import stores

store_module.COMPACT_EVERY = 100_000
compaction.MAX_RECORDS = 100
writer.BASE_EVERY = 20

store, engine = stores.started(Path(sys.argv[1]))
for count, event in enumerate(stores.life(engine, seed=int(sys.argv[2]))):
    stores.commit(store, engine, event, now=float(count))
    os.write(1, b"%d\n" % count)
