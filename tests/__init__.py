"""Where there is no GPU, Triton's interpreter runs its kernels, which it must know before it is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
