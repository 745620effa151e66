"""The kubelet: its managers, what it reserves, devices, and resource claims."""
