"""How one chat template writes its calls: reading them, and noticing what is nearly one."""
