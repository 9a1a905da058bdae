# SPDX-License-Identifier: Apache-2.0
"""What the planner foretells of the demo's acts, worked out once."""

import pytest

from koordpy.demo.acts import Forecast, Forecaster, read_acts
from koordpy.demo.programme import ASCEND


@pytest.fixture(scope="session")
def forecasts() -> list[Forecast]:
    forecaster = Forecaster()
    return [forecaster.forecast(act) for act in read_acts()]


@pytest.fixture(scope="session")
def npu_forecasts() -> list[Forecast]:
    forecaster = Forecaster(cluster=ASCEND.cluster)
    return [forecaster.forecast(act) for act in read_acts(ASCEND.acts)]
