"""The decisions: pure, deterministic, transactional."""
