"""How the daemon shows how it is: metrics, probes, the service manager, logs."""
