"""The NRI wire: codecs without I/O, the session, what each runtime can do."""
