"""What whoever writes a status needs: calls, leave to write, and the times of the settings.

One `Writing` serves all writers (of pods, PodGroups, quotas, Devices), so that what they all need is said once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.client import ApiClient
from koordpy.engine.settings import EngineSettings
from koordpy.engine.status.announce import Announcer
from koordpy.engine.status.references import References
from koordpy.engine.watching.feeds import Feeds


@dataclass(frozen=True, slots=True)
class Writing:
    """Everything that writers share. `clock` counts seconds and never goes back, `now` tells the time of conditions."""

    client: ApiClient
    feeds: Feeds
    announcer: Announcer
    references: References
    settings: EngineSettings
    may_write: Callable[[], bool]
    clock: Callable[[], float]
    now: Callable[[], datetime]

    @property
    def state(self) -> ClusterState:
        return self.feeds.state
