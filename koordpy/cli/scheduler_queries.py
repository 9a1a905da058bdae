# SPDX-License-Identifier: Apache-2.0
"""Asks the running scheduler about one namespace, through the API server, if the user may not read the whole cluster.

The scheduler's aggregated API (`operator/tenant_api.py`) answers if the user may get pods in that namespace.
Each refusal is reported with the missing right and the next step.
"""

import argparse
import asyncio
import logging
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from koordpy.api.counted_nouns import count_noun
from koordpy.cli import output
from koordpy.cli.offline_inputs import ClusterUnreadableError
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.credentials import load_access
from koordpy.engine.client.kubeconfig import CredentialError
from koordpy.view.subjects import parse
from koordpy.view.view_names import GROUP, name_of, path_of

Document = dict[str, Any]
RESOURCES = {"why": "explanations", "queue": "queues", "slots": "slots"}
"""Subcommand of the plugin -> resource of the API."""
NOT_SERVED = (
    f"the API {GROUP}, which answers users with rights in one namespace only, is not served on this cluster: ask an "
    "administrator to set tenants.enabled in the chart, or to grant you list of pods and nodes"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The scheduler's answer."""

    document: Document
    server: str
    """URL of the API server."""


def ask_scheduler(args: argparse.Namespace, unreadable: ClusterUnreadableError) -> Answer:
    """Returns the scheduler's answer for one namespace.

    unreadable: why the cluster itself could not be read; part of the error text if there is no answer.
    Raises ClusterUnreadableError.
    """
    if args.view not in RESOURCES:
        raise ClusterUnreadableError(
            f"{unreadable}. {args.view} needs the right to list pods and nodes of the whole cluster; "
            f"{', '.join(RESOURCES)} need rights in one namespace only"
        )
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(_ask(args, unreadable))
    except (ApiError, Unreachable, CredentialError) as fault:
        text = " ".join(str(fault).split())
        raise ClusterUnreadableError(f"{unreadable}. The scheduler does not answer: {text}") from None
    finally:
        logging.disable(before)


async def _ask(args: argparse.Namespace, unreadable: ClusterUnreadableError) -> Answer:
    access = await load_access(args.kubeconfig, args.context)
    namespace, name, query = args.namespace or access.namespace, "current", ""
    if args.view == "why":
        kind, key = parse(args.name, namespace)
        namespace, _, name = key.partition("/")
        name = name_of(kind, name)
    elif args.view == "slots":
        asked = {"gpus": str(args.gpus), **({"resource": args.resource} if args.resource else {})}
        query = f"?{urlencode(asked)}"
    resource = RESOURCES[args.view]
    path = path_of(quote(namespace, safe=""), resource, quote(name, safe="")) + query
    async with ApiClient(access, qps=0) as client:
        try:
            found = await client.get(path, type=dict[str, Any])
        except ApiError as fault:
            if fault.status in (403, 404) and not await _is_served(client):
                raise ClusterUnreadableError(f"{unreadable}; {NOT_SERVED}") from None
            raise ClusterUnreadableError(_refusal(fault, namespace, resource)) from None
    return Answer(found.get("report", {}), access.server)


def _refusal(fault: ApiError, namespace: str, resource: str) -> str:
    """Returns the error text: the missing right, and the next step."""
    if fault.status == 404 and fault.reason == "NotFound" and fault.message:
        return fault.message
    if fault.status == 403 and "may not get pods" in fault.message:
        return (
            f"{fault.message}: ask for a Role there with get of pods "
            f"(kubectl auth can-i get pods --namespace {namespace} shows whether you have one)"
        )
    if fault.status == 403:
        return (
            f"{fault.message}: ask for a Role in namespace {namespace} with get of {resource}.{GROUP} and of pods, "
            f"or for the ClusterRole view there"
        )
    if fault.status == 429:
        return fault.message or "too many requests: try again later"
    return f"the scheduler does not answer: {' '.join(str(fault).split())}"


async def _is_served(client: ApiClient) -> bool:
    """Returns True if the API is installed, or if that is unknown because the request failed."""
    try:
        await client.get(f"/apis/{GROUP}", type=dict[str, Any])
    except ApiError as fault:
        return fault.status != 404
    except Unreachable:
        return True
    return True


# -- as text ----------------------------------------------------------------------------------------------------------


def why_text(document: Document, wide: bool) -> str:
    found = document["explanation"]
    lines = output.gang_lines(document)
    lines += output.pending_lines([{**one, "reason": one["reason"] or "not waiting"} for one in document["pods"]])
    if document["podsNotListed"]:
        lines.append(f"and {count_noun(document['podsNotListed'], 'more pod')}")
    if found is None:
        place = document["queue"]
        if place is not None and place["place"] is not None:
            lines += ["", "Queue", f"  place {place['place']} of {place['waiting']}"]
        if document["explanationInSeconds"]:
            lines.append(f"The explanation is not ready yet: ask again in {document['explanationInSeconds']} s")
        return output.lined(lines)
    if wide:
        lines += ["", *_nodes_and_domains(found)]
    return output.lined(lines + output.remedies(found))


def _nodes_and_domains(found: Document) -> list[str]:
    lines = [f"{found['pod']}: {output.fits_on(found, found['allNodes'])}"]
    lines += output.part(
        "Nodes", output.table(("NODES", "WHY NOT"), [(n, text) for text, n in found["reasons"].items()])
    )
    rows = [
        (one["layer"], one["name"] or "the cluster", one["slots"], one["needed"], one["reason"])
        for one in found["domains"]
    ]
    return lines + output.part("Domains", output.table(("LAYER", "NAME", "SLOTS", "NEEDED", "WHY"), rows))


def queue_text(document: Document, wide: bool) -> str:
    from koordpy.cli.cluster_views import queue_text as rows_text

    others = document["others"]
    text = rows_text(document, wide)
    if document["unitsNotListed"]:
        text += f"and {count_noun(document['unitsNotListed'], 'more unit')}\n"
    units = count_noun(others["waiting"], "unit")
    text += f"other tenants: {units} waiting, {others['held']} blocked before planning"
    return f"{text}, {count_noun(others['pods'], 'pod')} in total\n"


def slots_text(document: Document, wide: bool) -> str:
    if document["gangs"] is None:
        return f"Slots are not counted yet: ask again in {document['retryInSeconds']} s\n"
    from koordpy.cli.cluster_views import slots_text as counts_text

    text = counts_text(document, False)
    if not wide:
        return text
    rows = [(one["layer"], one["name"] or "the cluster", one["nodes"], one["slots"]) for one in document["domains"]]
    text += "\n" + output.lined(output.table(("LAYER", "NAME", "NODES", "SLOTS"), rows))
    if document["domainsNotListed"]:
        text += f"and {count_noun(document['domainsNotListed'], 'more domain')}\n"
    return text


TEXTS = {"why": why_text, "queue": queue_text, "slots": slots_text}
"""Subcommand -> function that formats its document as text. The flag `wide` adds nodes and domains."""
