# SPDX-License-Identifier: Apache-2.0
"""Composes the result of a round: placements with annotations, the message of each pending pod, the state of each gang.

Kubernetes' own sentences are unchanged; koordpy's part states what was requested and what is available.

Main types: `report_round` (`round_report.py`): the report; `GangSentence` (`gang_sentence.py`): a gang's sentence;
`DomainReasons` (`domain_reasons.py`): reasons per domain.

Must not decide anything. Start reading at `round_report.py`, then `denial.py`.
"""
