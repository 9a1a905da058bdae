"""Delivery `device-plugin`: the kubelet asks for GPUs, and every pod gets those that the scheduler chose for it.

Source: gpu-topology.md 10. `ledger` decides (pure), `messages` are the kubelet's gRPC types, `server` answers
the kubelet, `service` keeps the registration alive and reconciles what was delivered with what the kubelet says.
"""
