"""`python -m weft_e2e.cluster`: the same commands as `weft cluster`."""

import sys

from weft_e2e.cluster.cli import main

sys.exit(main())
