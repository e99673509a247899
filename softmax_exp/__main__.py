"""`python -m softmax_exp`: see cli.main."""

import sys

from softmax_exp.cli import main

if __name__ == "__main__":
    sys.exit(main())
