"""``python -m spectune``."""

import sys

from spectune.cli.main import main

sys.exit(main())
