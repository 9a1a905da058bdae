"""The node side: NVML discovery and Device reports."""
