"""What users and the cluster say: wire objects, keys, quantities. No I/O."""
