"""The control service: what the daemon holds, why, and what would be if; proto/control.proto."""
