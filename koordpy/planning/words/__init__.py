"""What is said of a round: to the pod that waits, to the gang, to whoever asks why (vocabulary.md 10, simulate.md)."""
