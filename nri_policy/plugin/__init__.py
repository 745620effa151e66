"""The NRI plugin: the runtime's events to the engine, its decisions back, and seen in force."""
