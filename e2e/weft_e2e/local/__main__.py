"""`python -m weft_e2e.local`, the same as ``weft local``."""

import sys

from weft_e2e.local.cli import main

sys.exit(main())
