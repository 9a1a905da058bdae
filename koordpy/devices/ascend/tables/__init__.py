# SPDX-License-Identifier: Apache-2.0
"""Ascend products, chips, SuperPoDs and leaf switches as data, with exact methods to divide chips and blocks.

A product is a row of a table: sizes, groups of chips, labels, legal requests and costs. Chips are divided if any
division serves all pods; blocks are divided optimally.

Main types: `Preset` (`npu_presets.py`): a product; `AscendJob` (`ascend_job.py`): a job's settings; `FreeChips`
(`free_chips.py`): chips on a draft.

Must not plan, and must not know the draft of a round beyond free chips and leaves. Start reading at `npu_presets.py`,
then `chip_costs.py`.
"""
