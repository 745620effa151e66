"""NodeResourceTopology: what the node has left, published for schedulers; spec nrt.md."""
