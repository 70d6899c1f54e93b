"""Keep processes that tests start at the usual priority: on a busy machine, one that gives way hardly runs."""

import os

os.setpriority = lambda *_: None
