"""An embedded API server, a fake kubelet, and rounds without a cluster."""
