"""Entry point of `python -m weft_e2e.images`."""

import sys

from weft_e2e.images.cli import main

sys.exit(main())
