"""What is watched: list and watch kept up, lines decoded, what is kept of a pod (kube-parity.md 4.1)."""
