"""What the kubelet tells."""
