# SPDX-License-Identifier: Apache-2.0
"""The command line: one small module per command, imported only when that command runs.

Commands read manifests or a running cluster, call the planner or the scheduler's API, and print a document or a table.

Main types: `COMMANDS` (`main.py`): every command by name; `add_cluster` (`offline_inputs.py`): options that name the
input; `say` (`output.py`): prints output.

Must not make scheduling decisions. `koordpy --help` must import neither the planner nor the manifest parser.
Start reading at `main.py`, then `simulate_command.py`.
"""

from koordpy.cli.python_version import require_supported_python

require_supported_python()
