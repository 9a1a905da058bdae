# SPDX-License-Identifier: Apache-2.0
"""Types of configuration values: durations in seconds, counts, solver times, names of plugins and kinds.

A type states the bounds that the reader of the file checks (`configuration_file.py`). To type checkers, names of
plugins and kinds are plain strings, because a `Literal` of a computed tuple is not static.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from koordpy.config.part_names import FAMILIES


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the configuration's sections; in the file, field names are in camel case."""


Seconds = Annotated[float, Meta(extra={"format": "duration"})]
"""Seconds. In the file, a Go duration such as `30s`."""
Span = Annotated[float, Meta(gt=0, extra={"format": "duration"})]
"""A duration above 0s."""
Count = Annotated[int, Meta(ge=0)]
"""A whole number of at least 0."""
Size = Annotated[int, Meta(ge=1)]
"""A whole number of at least 1."""
SolverTime = Annotated[float, Meta(gt=0, le=600)]
"""Time limit of CP-SAT in its deterministic units, of about one second each. At most 600, so that a round ends."""
WallTime = Annotated[float, Meta(gt=0, le=600)]
"""Seconds of wall-clock time, above 0 and at most 600; a number in the file."""
NotNegative = Annotated[float, Meta(ge=0)]

DEFAULT_WEIGHTS: Mapping[str, int] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ScarceResourceAvoidance": 2,
    "NodeResourceTopologyMatch": 2,
    "NodeResourcesFit": 1,
    "ImageLocality": 1,
    "NodeResourcesBalancedAllocation": 0,
}
"""Default weights of the score plugins (kube-parity.md section 3). The file may set weights only for these names."""

if TYPE_CHECKING:
    ScorePlugin = str
else:
    ScorePlugin = Literal[tuple(DEFAULT_WEIGHTS)]

GANG_KINDS = (
    "Job",
    "JobSet",
    "LeaderWorkerSet",
    "PyTorchJob",
    "TFJob",
    "XGBoostJob",
    "PaddleJob",
    "JAXJob",
    "MPIJob",
    "TrainJob",
    "RayCluster",
    "PodGang",
    "StatefulSet",
)
"""Kinds of workloads from which gangs may be derived (workloads.md 1)."""
if TYPE_CHECKING:
    GangKind = str
else:
    GangKind = Literal[GANG_KINDS]

if TYPE_CHECKING:
    PartFamily = str
else:
    PartFamily = Literal[FAMILIES]
