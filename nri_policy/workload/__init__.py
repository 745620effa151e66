"""Pods and containers as the engine sees them: requests, annotations, eligibility."""
