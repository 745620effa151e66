"""Where settings come from while the daemon runs."""
