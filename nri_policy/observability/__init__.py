"""How the daemon shows how it is: metrics, probes, watchdog, the service manager, logs."""
