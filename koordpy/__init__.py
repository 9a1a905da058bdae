"""koordpy: a Kubernetes scheduler for gangs and network topology on clusters of accelerators."""

__version__ = "0.1.0"
