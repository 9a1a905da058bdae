# SPDX-License-Identifier: Apache-2.0
"""koordpy over time on a real control plane: streams of gangs, idle minutes, storms of events, deaths."""
