"""Node filters, one small module a concept; each answers a Verdict (kube-parity.md sections 1 and 2)."""
