"""One pod as the API server has it now: what is asked whenever a reply has left something open.

What is done with the answer cannot be taken back: a pod that is gone is forgotten, a place given to the next. So an
answer that is about anything else (a proxy's, a cache's) is no answer.
"""

from koordpy.api.objects import Pod
from koordpy.engine.apiserver.client import ApiClient, ApiError
from koordpy.engine.apiserver.resources import PODS

HTTP_OK = 200


async def read_pod(client: ApiClient, namespace: str, name: str) -> Pod | None:
    """The pod of a name, whatever its uid; None where the API server has none.

    Raises as the client does, and ApiError where the answer is not of a pod of that name.
    """
    pod = await client.get_or_none(PODS.path(namespace, name), type=Pod)
    if pod is None:
        return None
    meta = pod.metadata
    if not meta.uid or (meta.namespace, meta.name) != (namespace, name):
        text = f"asked for pod {namespace}/{name}, the answer is about {meta.namespace}/{meta.name}, uid {meta.uid!r}"
        raise ApiError(HTTP_OK, "Undecodable", text)
    return pod
