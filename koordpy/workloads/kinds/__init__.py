"""The kinds of workloads: a module or a function each, and a line in the registry."""
