"""Entry point of `python -m weft_e2e.release`."""

import sys

from weft_e2e.release.cli import main

sys.exit(main())
