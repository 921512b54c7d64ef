"""`python -m fuseboard`: the command line."""

import sys

from fuseboard.cli import main

sys.exit(main())
