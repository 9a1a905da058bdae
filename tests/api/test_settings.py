# SPDX-License-Identifier: Apache-2.0
"""Labels and annotations that say nothing, because of their value, their spelling or their place, are told of."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.field_faults import UnreadableError
from koordpy.api.json_text import read_json
from koordpy.api.key_hints import Holder
from koordpy.api.objects import ObjectMeta
from koordpy.api.spelling import meant
from koordpy.config.gang_topology import parse_topology_wish
from koordpy.decoding.annotation_settings import OF_GANGS, OF_QUOTAS, odd_settings, odd_values, whole_number

GANG = keys.GANG_PREFIX
POD_GROUP = keys.LABEL_POD_GROUP


@pytest.mark.parametrize(
    ("key", "text", "wrong"),
    [
        (keys.GANG_MODE, "strict", "'strict' is neither Strict nor NonStrict: Strict holds"),
        (keys.GANG_MODE, "NonStrict", None),
        (keys.GANG_MATCH_POLICY, "once", "'once' is none of once-satisfied, only-waiting, waiting-and-running: once-s"),
        (keys.GANG_MATCH_POLICY, "only-waiting", None),
        (keys.GANG_WAITING_TIME, "10", "'10' is no duration (as in 30s, 1h30m): 10m holds"),
        (keys.GANG_WAITING_TIME, "-5s", "'-5s' is not above 0: 10m holds"),
        (keys.GANG_WAITING_TIME, "5s", None),
        (keys.GANG_STALE_GRACE, "soon", "'soon' is no duration (as in 30s, 1h30m): the configured time holds"),
        (keys.GANG_STALE_GRACE, "-1", None),
        (keys.GANG_STALE_GRACE, "0s", None),
        (keys.GANG_SEAT_HOLD, "-5m", "'-5m' is below 0: the configured time holds"),
        (keys.GANG_SEAT_HOLD, "long", "'long' is no duration (as in 30s, 1h30m): the configured time holds"),
        (keys.GANG_SEAT_HOLD, "0s", None),
        (keys.GANG_TOTAL, "many", "'many' is no whole number above 0"),
        (keys.GANG_TOTAL, "8", None),
        (keys.MAX_RUNTIME, "4 hours", "'4 hours' is no duration (as in 30s, 1h30m): its end is not known"),
        (keys.MAX_RUNTIME, "0s", "'0s' is not above 0: its end is not known"),
        (keys.MAX_RUNTIME, "4h", None),
    ],
)
def test_an_annotation_of_a_gang_that_cannot_be_read_is_told(key: str, text: str, wrong: str | None) -> None:
    found = list(odd_values(OF_GANGS, {}, {key: text}))
    assert [line[: len(f"annotation {key} cannot be read: {wrong}")] for line in found] == (
        [f"annotation {key} cannot be read: {wrong}"] if wrong else []
    )


@pytest.mark.parametrize(
    ("labels", "annotations", "told"),
    [
        ({keys.QUOTA_PREEMPTIBLE: "no"}, {}, [f"label {keys.QUOTA_PREEMPTIBLE} cannot be read: 'no' is neither true"]),
        ({keys.QUOTA_PREEMPTIBLE: "false"}, {}, []),
        (
            {keys.RANK_INDEX_LABEL: "first"},
            {},
            [f"label {keys.RANK_INDEX_LABEL} cannot be read: 'first' is not an index"],
        ),
        (
            {keys.RANK_INDEX_LABEL: "7"},
            {keys.RANK_INDEX_ANNOTATION: "x7"},
            [f"annotation {keys.RANK_INDEX_ANNOTATION}"],
        ),
        ({"app": "x", "pod-group": "y", "koordinator.sh/qosClass": "LS"}, {"sidecar.io/inject": "true"}, []),
        (
            {"pod-group.scheduling.sigs.k8s.oi": "g"},
            {},
            ["label pod-group.scheduling.sigs.k8s.oi is not read, did you"],
        ),
        ({"pod-group.scheduling.sig.k8s.io": "g"}, {}, ["label pod-group.scheduling.sig.k8s.io is not read, did you"]),
        ({"pod-group.scheduling.sig.k8s.io": "g", POD_GROUP: "g"}, {}, []),
        ({}, {POD_GROUP: "g"}, [f"annotation {POD_GROUP} is not read: it must be a label"]),
        ({keys.GPU_MIN_BANDWIDTH: "50"}, {}, [f"label {keys.GPU_MIN_BANDWIDTH} is not read: it must be an annotation"]),
        (
            {},
            {GANG + "network-topologyAware": "{}"},
            [f"annotation {GANG}network-topologyAware is not read, did you mean"],
        ),
        ({}, {GANG + "min-availble": "2"}, [f"annotation {GANG}min-availble is not read, did you mean annotation"]),
        ({"quota.scheduling.koordinator.sh/Name": "q"}, {}, ["label quota.scheduling.koordinator.sh/Name is not read"]),
        ({"quota.scheduling.koordinator.sh/used": "q"}, {keys.BOUND_DOMAIN: "a", keys.BOUND_RANK: "1"}, []),
    ],
)
def test_what_a_pod_says_in_vain_is_told(labels: dict[str, str], annotations: dict[str, str], told: list[str]) -> None:
    found = list(odd_settings(Holder.PLAIN, ObjectMeta(labels=labels, annotations=annotations)))
    assert [line[: len(start)] for line, start in zip(found, told, strict=True)] == told


@pytest.mark.parametrize("key", [key for _, key in OF_QUOTAS])
@pytest.mark.parametrize("text", ["yes", "True", "1", ""])
def test_a_truth_of_a_quota_that_is_none_is_told(key: str, text: str) -> None:
    (line,) = odd_values(OF_QUOTAS, {key: text}, {})
    assert line.startswith(f"label {key} cannot be read: {text!r} is neither true nor false: ")


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("minMembers", ("minMember", "minResources"), "minMember"),
        ("MINMEMBER", ("minMember",), "minMember"),
        ("minMmeber", ("minMember",), "minMember"),
        ("minMember", ("minMember", "minMembers"), ""),
        ("min", ("max",), ""),
        ("gpu", ("gpus",), "gpus"),
        ("limit", ("limits",), "limits"),
        ("a", ("as",), ""),
        ("Min", ("min",), "min"),
        ("layers", ("layer", "layerName"), "layer"),
        ("strategies", ("strategy",), ""),
        ("", ("a",), ""),
        ("gatherStrategies", ("gatherStrategy",), "gatherStrategy"),
        ("gatherStratgy", ("gatherStrategy",), "gatherStrategy"),
    ],
)
def test_a_misspelt_name_means_its_nearest(name: str, known: tuple[str, ...], near: str) -> None:
    assert meant(name, known) == near


@given(st.text("abc", min_size=9, max_size=12), st.data())
def test_one_letter_swapped_dropped_doubled_or_changed_is_near(name: str, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(name) - 2))
    changed = data.draw(
        st.sampled_from(
            [
                name[:i] + name[i + 1] + name[i] + name[i + 2 :],
                name[:i] + name[i + 1 :],
                name[:i] + name[i] + name[i:],
                name[:i] + "x" + name[i + 1 :],
                name.upper(),
            ]
        )
    )
    assert meant(changed, (name, "something-else")) == ("" if changed == name else name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "invalid JSON, line 1 column 1"),
        ('{"a": 1,\n "b": }', "invalid JSON, line 2 column 7"),
        ("[" * 50_000, "invalid JSON, nested too deeply"),
        ("[" * 100_000, "100000 bytes, at most 65536 are read"),
        ("9" * 5000, "invalid JSON, a number is too long"),
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' is given twice"),
        ('{"layer": "a\\ud800"}', "invalid JSON, a lone surrogate is not a character"),
    ],
)
def test_json_of_an_annotation_that_cannot_be_read_says_where(text: str, fault: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        read_json(text)
    assert str(raised.value) == fault


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_that_says_everything_once_is_read_as_it_is(value: object) -> None:
    assert read_json(json.dumps(value)) == value


RULE = {"layer": "blockLayer", "strategy": "MustGather"}
SIZE = {"parallelStrategy": "pipeline-parallel", "parallelism": 2}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (None, "must be a JSON object, not null"),
        ([], "must be a JSON object, not a list"),
        (True, "must be a JSON object, not a boolean"),
        ({"gatherStrategy": {}}, "gatherStrategy: must be a list, not a mapping"),
        ({"gatherStrategy": [None]}, "gatherStrategy[0]: must be a mapping, not null"),
        (
            {"gatherStrategy": [{**RULE, "layer": None}]},
            "gatherStrategy[0].layer: must be the name of a layer, not null",
        ),
        (
            {"gatherStrategy": [RULE, {**RULE, "layer": True}]},
            "gatherStrategy[1].layer: must be the name of a layer, not true",
        ),
        ({"gatherStrategy": [{**RULE, "layer": ""}]}, "gatherStrategy[0].layer: must be the name of a layer, not ''"),
        (
            {"gatherStrategy": [{**RULE, "strategy": ["x"]}]},
            'gatherStrategy[0].strategy: ["x"] is neither PreferGather',
        ),
        (
            {"gatherStrategy": [{**RULE, "strategy": "mustGather"}]},
            "gatherStrategy[0].strategy: 'mustGather' is neither",
        ),
        (
            {"gatherStrategy": [{**RULE, "podCountMultiple": True}]},
            "gatherStrategy[0].podCountMultiple: true is no whole",
        ),
        (
            {"gatherStrategy": [{**RULE, "podCountMultiple": 1.5}]},
            "gatherStrategy[0].podCountMultiple: 1.5 is no whole",
        ),
        ({"gatherStrategy": [{**RULE, "podCountMultiple": -1}]}, "gatherStrategy[0].podCountMultiple: -1 is no whole"),
        ({"parallelModel": [{**SIZE, "parallelism": False}]}, "parallelModel[0].parallelism: false is no number of 1"),
        ({"parallelModel": [{**SIZE, "parallelism": {"a": None}}]}, 'parallelModel[0].parallelism: {"a": null} is no'),
        ({"parallelModel": [{**SIZE, "parallelStrategy": None}]}, "parallelModel[0].parallelStrategy: null is none of"),
    ],
)
def test_a_topology_wish_that_cannot_be_read_is_told_in_the_words_of_json(raw: object, said: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        parse_topology_wish(json.dumps(raw))
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"gatherStratgy": []}, "gatherStratgy: unknown field, did you mean gatherStrategy?"),
        (
            {"gatherStrategy": [{**RULE, "podcountMultiple": 2}]},
            "gatherStrategy[0].podcountMultiple: unknown field, did you mean podCountMultiple?",
        ),
        (
            {"gatherStrategy": [RULE, {"layr": "l", "strategy": "MustGather"}]},
            "gatherStrategy[1].layr: unknown field, did you mean layer?",
        ),
        ({"parallelModel": [{**SIZE, "x": 1}]}, "parallelModel[0].x: unknown field"),
        ({"a": 1, "b": 2}, "a: unknown field; b: unknown field"),
    ],
)
def test_an_unknown_field_makes_a_topology_wish_unreadable(raw: object, said: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        parse_topology_wish(json.dumps(raw))
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), (" +3 ", 3), ("-3", -3), ("3.0", None), ("\u0663", None), ("", None), ("9" * 5000, None)],
)
def test_a_whole_number_is_written_in_plain_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number
