"""What a node is worth to a pod by kube-scheduler's plugins (kube-parity.md section 3)."""
