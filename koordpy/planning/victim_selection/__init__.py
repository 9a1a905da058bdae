"""Which units go: the problem in numbers, its bounds and its answers, without a snapshot."""
