"""What is said of a round: to the pod that waits, the gang, whoever asks why (vocabulary.md 10, simulate.md 3.3)."""
