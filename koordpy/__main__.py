# SPDX-License-Identifier: Apache-2.0
"""`python -m koordpy`: the same as the command `koordpy`."""

import sys

from koordpy.cli.main import main

sys.exit(main())
