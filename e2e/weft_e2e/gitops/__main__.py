"""Let ``python -m weft_e2e.gitops`` run the command."""

from weft_e2e.gitops.cli import main

main(prog_name="weft_e2e.gitops")
