"""Replies to writes of resource claims, taken in as the watch's events are: both overtake each other on their way."""

from koordpy.api.dra import ResourceClaim
from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.versions import is_older


def take_reply(state: ClusterState, claim: ResourceClaim) -> None:
    """Makes a claim known as a reply showed it, so that no plan is made on what was before.

    What is known is kept where it is newer: by an older reply a reservation that was taken back would come to life
    again, and its pod be bound without it. A claim that the watch has told to be gone stays gone.
    """
    known = state.get(ResourceClaim, f"{claim.metadata.namespace}/{claim.metadata.name}")
    if isinstance(known, ResourceClaim) and not is_older(
        claim.metadata.resource_version, known.metadata.resource_version
    ):
        state.upsert(claim)
