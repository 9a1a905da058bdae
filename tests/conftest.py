"""What holds for every test: none asserts how long anything takes, so that a busy machine fails none."""

import os

from hypothesis import HealthCheck, settings

# CI tries the same examples each time: what fails there fails at every desk with CI=true. Elsewhere they are new ones.
settings.register_profile(
    "koordpy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("koordpy")
