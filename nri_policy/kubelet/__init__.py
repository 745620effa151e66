"""What the kubelet tells, and what it would ask the runtime for a pod."""
