"""Keep processes that tests start at the usual priority, and let them import without looking for garbage.

On a busy machine, a process that gives way hardly runs. Every import of torch makes half a million objects, among
which the usual threshold looks again and again: an eighth of the time of a start.
"""

import gc
import os

os.setpriority = lambda *_: None
gc.set_threshold(50_000)
