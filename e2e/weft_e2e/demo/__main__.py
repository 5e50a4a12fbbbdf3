"""`python -m weft_e2e.demo`."""

import sys

from weft_e2e.demo.cli import main

sys.exit(main())
