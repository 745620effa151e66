"""The NRI wire: codecs without I/O, the plugin session, adjustments."""
