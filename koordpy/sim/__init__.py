"""An embedded API server, a fake kubelet and cluster generators."""
