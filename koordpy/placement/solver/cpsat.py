# SPDX-License-Identifier: Apache-2.0
"""Imports OR-Tools' constraint solver CP-SAT, but without pandas.

OR-Tools imports pandas for a series type that koordpy does not use. Pandas would cost 40 MB of memory, 0.3 s, and a
quarter of the image. During the import an empty module replaces it, with the two names that OR-Tools' annotations need.
"""

import sys
from types import ModuleType

PANDAS = "pandas"
_known = sys.modules.get(PANDAS)
_stand_in = ModuleType(PANDAS)
vars(_stand_in).update(Index=type("Index", (), {}), Series=type("Series", (), {}))
sys.modules[PANDAS] = _stand_in
try:
    from ortools.sat.python import cp_model as cp_model
finally:
    if _known is None:
        del sys.modules[PANDAS]
    else:
        sys.modules[PANDAS] = _known


class Model(cp_model.CpModel):
    """A CP-SAT model without the method names of earlier OR-Tools (`NewBoolVar`).

    OR-Tools adds them to every single model, which takes longer than a small model's constraints, and makes a reference
    cycle that keeps the model until the next garbage collection.
    """

    def _add_pre_pep8_methods(self) -> None:
        """Adds no names."""
