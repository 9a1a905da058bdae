# SPDX-License-Identifier: Apache-2.0
"""`koordpy run`: flags beat the file, and every fault is named."""

import argparse
import re
from pathlib import Path

import pytest

from koordpy.api.field_faults import InputFaultsError
from koordpy.cli.run_command import add_arguments, configuration, webhook_of
from koordpy.config.configuration import KoordpyConfiguration


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(list(words))


def test_without_flags_the_defaults_hold() -> None:
    config = configuration(parse())
    assert config.scheduler_names == ("koord-scheduler",)
    assert config.leader_election.leader_elect is True
    assert config.bind_address == ":10259"


def test_a_flag_given_beats_the_file_and_leaves_the_rest_of_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "schedulerNames: [a]\nclientConnection: {qps: 5, burst: 6, kubeconfig: there}\n"
        "leaderElection: {resourceName: mine, leaderElect: false}\nbindAddress: 127.0.0.1:1\n"
    )
    flags = ("--scheduler-name", "b", "--scheduler-name", "c", "--kube-api-qps", "7", "--leader-elect")
    config = configuration(parse("--config", str(file), *flags))
    assert config.scheduler_names == ("b", "c")
    assert (config.client_connection.qps, config.client_connection.burst) == (7.0, 6)
    assert config.client_connection.kubeconfig == "there"
    assert (config.leader_election.leader_elect, config.leader_election.resource_name) == (True, "mine")
    assert config.bind_address == "127.0.0.1:1"


def test_every_fault_of_the_flags_is_named_by_the_rules_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("schedulerNames: [Bad Name!]\npodMaxBackoff: soon\n")
    flags = ("--bind-address=nowhere", "--scheduler-name=ok", "--scheduler-name=a b", "--kube-api-burst=0")
    more = ("--kube-api-qps=-5", "--leader-elect-resource-name=Bad_Name", "--leader-elect-resource-namespace=")
    with pytest.raises(InputFaultsError) as caught:
        configuration(parse("--config", str(file), *flags, *more))
    assert [line.partition(": ")[0] for line in sorted(caught.value.lines)] == [
        "--bind-address", "--kube-api-burst", "--kube-api-qps", "--leader-elect-resource-name",
        "--leader-elect-resource-namespace", "--scheduler-name", str(file),
    ]  # fmt: skip


def test_a_faulty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("podMaxBackoff: soon\n")
    with pytest.raises(InputFaultsError, match="podMaxBackoff"):
        configuration(parse("--config", str(file)))


def test_certificates_of_the_webhook_that_are_not_there_are_told_by_their_own_flag(tmp_path: Path) -> None:
    args = parse("--webhook-address", "127.0.0.1:0", "--webhook-certificates", str(tmp_path))
    missing = f"--webhook-certificates: {tmp_path}/tls.crt: No such file or directory"
    with pytest.raises(InputFaultsError, match=re.escape(missing)):
        webhook_of(args, KoordpyConfiguration())
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("none")
    with pytest.raises(InputFaultsError, match=r"^--webhook-address: is required with --webhook-certificates$"):
        webhook_of(parse("--webhook-certificates", str(tmp_path)), KoordpyConfiguration())
    same = parse("--webhook-address", "127.0.0.1:10259", "--webhook-certificates", str(tmp_path))
    with pytest.raises(
        InputFaultsError, match=r"^--webhook-address: port 10259 is already used by bindAddress \(:10259\)$"
    ):
        webhook_of(same, KoordpyConfiguration())
    with pytest.raises(InputFaultsError, match=r"--webhook-certificates: .*: tls\.crt and tls\.key cannot be used"):
        webhook_of(args, KoordpyConfiguration())
