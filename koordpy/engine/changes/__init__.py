"""What a change of each kind of object means: one module a concept, each putting it into the state and waking units."""
