"""Room for a pending unit from running pods: who may be evicted, for whom, and which least harmful set.

Source: preemption.md 1 to 6. Nothing is evicted here: a plan says who leaves and who takes the room, or why there is
none.
"""
