"""An env that looks for secrets around it, as code that somebody else wrote could."""

import os
import subprocess
import sys
from pathlib import Path

from tests.environments.walks import Walk


class Curious(Walk):
    """Tells all that its process, and one that it starts, can see without a debugger."""

    def seen(self):
        own = [Path(f"/proc/self/{name}").read_bytes() for name in ("environ", "cmdline")]
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(dict(os.environ))"],
            capture_output=True,
            check=True,
        ).stdout
        return b"\n".join([*own, parent, child, repr(dict(os.environ)).encode()])
