"""How jobs of Ascend NPUs stand on nodes, SuperPoDs and switches."""
