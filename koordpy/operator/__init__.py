"""The kopf operator: process life cycle, custom-resource handlers."""
