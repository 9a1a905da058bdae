# SPDX-License-Identifier: Apache-2.0
"""The chart's Grafana dashboards, written from one table: `python -m tests.charts.dashboards` makes the files anew.

Grafana's JSON repeats itself for every panel; what is meant fits on a line each. test_dashboards.py holds the files to
this table and every query to the metrics that koordpy has.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "koordpy" / "dashboards"
WIDTH, HEIGHT = 24, 8
Json = dict[str, Any]

SELECT = 'job=~"$job"'


@dataclass(frozen=True)
class Panel:
    """One panel. queries: (PromQL, legend)."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    columns: int = 3
    kind: str = "timeseries"
    about: str = ""


def rate(metric: str, by: str = "", more: str = "") -> str:
    """Rate a second, summed over replicas."""
    return f"sum{_by(by)} (rate({metric}{{{_with(more)}}}[$__rate_interval]))"


def gauge(metric: str, by: str = "", more: str = "") -> str:
    """Of the replica that leads: the others' figures stand still."""
    return f"max{_by(by)} ({metric}{{{_with(more)}}})"


def increase(metric: str, by: str = "") -> str:
    """How many more, summed over replicas."""
    return f"sum{_by(by)} (increase({metric}{{{_with('')}}}[$__rate_interval]))"


QUOTA = "{{quota}} {{resource}}"


def quota(kinds: str) -> str:
    """Figures of quotas, for the resources chosen on top."""
    return gauge("koordpy_quota", "quota, resource, kind", f'resource=~"$resource", kind=~"{kinds}"')


def quantile(q: float, metric: str, by: str = "", more: str = "") -> str:
    return f"histogram_quantile({q}, {rate(metric + '_bucket', ', '.join(filter(None, ('le', by))), more)})"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _with(more: str) -> str:
    return ", ".join(filter(None, (SELECT, more)))


OVERVIEW: dict[str, tuple[Panel, ...]] = {
    "Is it well": (
        Panel(
            "Leaders",
            ((f"sum by (namespace, job, lease) (koordpy_leader{{{SELECT}}})", "{{lease}}"),),
            kind="stat",
            columns=6,
            about="Exactly one for each Lease.",
        ),
        Panel("Pods waiting", ((gauge("scheduler_pending_pods", "queue"), "{{queue}}"),), kind="stat", columns=6),
        Panel("Half-bound gangs", ((gauge("koordpy_gangs_half_bound"), "gangs"),), kind="stat", columns=6, about="0."),
        Panel("Gangs", ((gauge("koordpy_gangs", "status"), "{{status}}"),), kind="stat", columns=6),
        Panel(
            "Lag of watches",
            ((quantile(0.99, "koordpy_watch_lag_seconds", "resource"), "{{resource}} p99"),),
            unit="s",
            columns=6,
        ),
        Panel(
            "Conflicts with others",
            (
                (rate("koordpy_conflicts_total", "kind"), "{{kind}}"),
                (rate("koordpy_foreign_binds_total", "profile"), "pods of {{profile}} bound by others"),
            ),
            columns=6,
        ),
        Panel(
            "Oldest pending pod",
            ((gauge("koordpy_pending_oldest_seconds"), "age"),),
            unit="s",
            kind="stat",
            columns=6,
        ),
        Panel(
            "Wrong objects",
            (
                (gauge("koordpy_topology_faults"), "faults of the topology"),
                (gauge("koordpy_topology_unlabelled_nodes", "layer"), "nodes without {{layer}}"),
                (gauge("koordpy_topology_split_domains", "layer"), "{{layer}} in two parents"),
                (gauge("koordpy_quotas_invalid"), "invalid quotas"),
                (gauge("koordpy_unreadable_objects", "kind"), "unreadable {{kind}}"),
            ),
            kind="stat",
            columns=6,
            about="0. The objects' conditions and events say what is wrong.",
        ),
    ),
    "Sharing": (
        Panel(
            "Accelerators used and free",
            ((gauge("koordpy_accelerators", "resource, state"), "{{resource}} {{state}}"),),
        ),
        Panel("Shares", ((gauge("koordpy_share", "queue, kind"), "{{queue}} {{kind}}"),), about="In accelerators."),
        Panel(
            "Pods evicted, by rule",
            ((increase("koordpy_victims_total", "rule"), "{{rule}}"),),
            about="Who went for whom is in the log and in /debug/decisions.",
        ),
        Panel("Quotas: used", ((quota("used"), QUOTA),)),
        Panel("Quotas: runtime", ((quota("runtime"), QUOTA),), about="What each may use now."),
        Panel("Quotas: min and max", ((quota("min|max"), QUOTA + " {{kind}}"),)),
    ),
    "Waiting": (
        Panel("Pending pods by queue", ((gauge("scheduler_pending_pods", "queue"), "{{queue}}"),)),
        Panel("Why pods wait", ((gauge("scheduler_unschedulable_pods", "plugin"), "{{plugin}}"),)),
        Panel("What wakes pods", ((rate("scheduler_queue_incoming_pods_total", "event"), "{{event}}"),)),
        Panel(
            "Wait of gangs",
            (
                (quantile(0.5, "koordpy_gang_wait_seconds"), "p50"),
                (quantile(0.95, "koordpy_gang_wait_seconds"), "p95"),
            ),
            unit="s",
        ),
        Panel(
            "Wait of pods",
            (
                (quantile(0.5, "scheduler_pod_scheduling_sli_duration_seconds"), "p50"),
                (quantile(0.99, "scheduler_pod_scheduling_sli_duration_seconds"), "p99"),
            ),
            unit="s",
        ),
        Panel("Attempts", ((rate("scheduler_schedule_attempts_total", "result"), "{{result}}"),)),
        Panel(
            "Units that wait longest",
            ((gauge("koordpy_unit_pending_seconds", "unit"), "{{unit}}"),),
            unit="s",
            about="The ten oldest that nothing of their own holds back. kubectl koordpy why NAME says why.",
        ),
        Panel(
            "Members that degraded gangs lack",
            ((gauge("koordpy_gang_degraded", "gang, workload"), "{{gang}} {{workload}}"),),
            about="Some members are bound, fewer than the minimum. kubectl koordpy why NAME says why.",
        ),
        Panel(
            "Accelerators that degraded gangs hold",
            ((gauge("koordpy_gang_degraded_accelerators", "gang"), "{{gang}}"),),
        ),
    ),
    "Placing": (
        Panel(
            "Lowest common layer of gangs",
            ((rate("koordpy_gang_layer_total", "layer"), "{{layer}}"),),
            about="How near to each other the members of gangs with a gather goal came.",
        ),
        Panel("Pipeline groups by layer", ((rate("koordpy_gang_pp_groups_crossing_total", "layer"), "{{layer}}"),)),
        Panel("Gang members bound", ((rate("koordpy_gang_members_bound_total"), "members/s"),)),
        Panel(
            "Weakest link between a pod's GPUs",
            (
                (quantile(0.5, "koordpy_gpu_bottleneck_gbps"), "median"),
                (quantile(0.1, "koordpy_gpu_bottleneck_gbps"), "p10"),
            ),
            about="GB/s, of the pods planned lately that are given several GPUs by name.",
        ),
        Panel(
            "Planning, a round",
            ((quantile(0.5, "koordpy_plan_seconds"), "p50"), (quantile(0.99, "koordpy_plan_seconds"), "p99")),
            unit="s",
        ),
        Panel("Answers of the solver", ((rate("koordpy_solver_status_total", "status"), "{{status}}"),)),
        Panel("Age of snapshots at commit", ((quantile(0.99, "koordpy_snapshot_age_seconds"), "p99"),), unit="s"),
        Panel("Bindings", ((rate("koordpy_binds_total", "outcome"), "{{outcome}}"),)),
        Panel("Time of a Binding", ((quantile(0.99, "koordpy_bind_seconds"), "p99"),), unit="s"),
        Panel("Cache", ((gauge("scheduler_cache_size", "type"), "{{type}}"),)),
    ),
    "The process": (
        Panel("CPU", ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),), about="Cores."),
        Panel("Memory", ((gauge("process_resident_memory_bytes", "instance"), "{{instance}}"),), unit="bytes"),
        Panel("Version", ((f"count by (version) (koordpy_build_info{{{SELECT}}})", "{{version}}"),), about="Replicas."),
        Panel(
            "Requests to the API server", ((rate("rest_client_requests_total", "method, code"), "{{method}} {{code}}"),)
        ),
        Panel(
            "Until the API server answers",
            ((quantile(0.99, "rest_client_request_duration_seconds", "verb"), "{{verb}} p99"),),
            unit="s",
        ),
        Panel("Events that were not sent", ((rate("koordpy_events_dropped_total", "reason"), "{{reason}}"),)),
    ),
}


def dashboard(uid: str, title: str, rows: dict[str, tuple[Panel, ...]]) -> Json:
    """The whole dashboard as Grafana imports it."""
    panels: list[Json] = []
    y = 0
    for name, row in rows.items():
        panels.append({"type": "row", "title": name, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}, "panels": []})
        y += 1
        x = 0
        for panel in row:
            width = WIDTH // panel.columns
            height = HEIGHT // 2 if panel.columns > 4 else HEIGHT
            if x + width > WIDTH:
                x, y = 0, y + height
            panels.append(_panel(panel, {"h": height, "w": width, "x": x, "y": y}))
            x += width
        y += height
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    return {
        "uid": uid,
        "title": title,
        "tags": ["koordpy", "scheduler"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "editable": True,
        "panels": panels,
        "templating": {
            "list": [_data_source(), _choice("job", "koordpy_leader"), _choice("resource", "koordpy_quota")]
        },
    }


def _panel(panel: Panel, place: Json) -> Json:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.about} if panel.about else {}),
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": query, "legendFormat": legend, "datasource": source}
            for n, (query, legend) in enumerate(panel.queries)
        ],
    }


def _data_source() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _choice(label: str, metric: str) -> Json:
    """One or several values of a label."""
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


DASHBOARDS = {"koordpy.json": dashboard("koordpy-overview", "koordpy", OVERVIEW)}


def main() -> None:
    for name, content in DASHBOARDS.items():
        (FOLDER / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
