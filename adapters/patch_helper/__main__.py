"""Program entry of the patch helper: `python -I -S …/patch_helper/__main__.py ROOT JOURNAL_DIR PARENT_PID`.

Started by `engine` alone, isolated: no site packages, no environment. That is why it finds its packages by itself.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    here = os.path.abspath(__file__)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))

    from adapters.patch_helper.program import serve
    from adapters.patch_helper.steps import Steps

    raise SystemExit(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), Steps()))
