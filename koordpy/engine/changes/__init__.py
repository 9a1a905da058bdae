"""What a change of each kind of object means: put into the state, and units woken."""
