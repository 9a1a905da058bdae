"""The command line: one light module a command, imported when that command is run.

Commands read manifests or a running cluster, call the planner or the scheduler's API, and print a document or a table.

Main types: `COMMANDS` (`main.py`): every command by name; `add_cluster` (`offline_inputs.py`): inputs; `say`
(`output.py`): output.

Must not decide anything. `koordpy --help` must import neither the planner nor a parser of manifests.
Start reading at `main.py`, then `simulate_command.py`.
"""
