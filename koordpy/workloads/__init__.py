"""Workloads as users write them: their roles, sizes and steps, the gangs that follow, the pods that they make."""
