"""A life of a store to be killed in: `python -m tests.store_victim STATE_DIR SEED`.

Writes random decisions for as long as it lives and says how many are committed. Its bounds are so
small that it trims the journal and starts the log anew all the time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nri_policy.store import store as store_module
from nri_policy.store import writer
from tests import stored

store_module.SETTLE_EVERY = 20_000
writer.MAX_RECORDS = 100
writer.BASE_EVERY = 20

store, engine = stored.started(Path(sys.argv[1]))
for count, event in enumerate(stored.life(engine, seed=int(sys.argv[2]))):
    stored.commit(store, engine, event, now=float(count))
    os.write(1, b"%d\n" % count)
