"""Program entry of the egress proxy: `python -I -S …/egress_proxy/__main__.py CONTROL_FD PARENT_PID`.

Started by `client` alone, isolated: no site packages, no environment. That is why it finds its packages by itself.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    here = os.path.abspath(__file__)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(here))))

    from adapters.egress_proxy.program import serve

    raise SystemExit(serve(int(sys.argv[1]), int(sys.argv[2])))
