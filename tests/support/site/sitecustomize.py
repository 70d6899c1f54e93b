"""Keep test processes at normal priority, and collect garbage rarely during their imports.

On a busy machine, a process of low priority hardly runs. Importing torch creates half a million objects; with the
usual threshold, garbage collection takes an eighth of the start time.
"""

import gc
import os

os.setpriority = lambda *_: None
gc.set_threshold(50_000)
