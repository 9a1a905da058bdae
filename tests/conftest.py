"""What holds for every test: none asserts how long anything takes, so that a busy machine fails none."""

from hypothesis import HealthCheck, settings

settings.register_profile("koordpy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("koordpy")
