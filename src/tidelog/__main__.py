"""``python -m tidelog``: the command, where its script is not on the path."""

import sys

from tidelog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
