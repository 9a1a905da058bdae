# SPDX-License-Identifier: Apache-2.0
"""The golden run: hashes of plans, recorded once, so that a change which shall keep all plans can show that it does."""
