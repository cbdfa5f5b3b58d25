"""`python -m rlref.cli`."""

import sys

from rlref.cli import main

sys.exit(main())
