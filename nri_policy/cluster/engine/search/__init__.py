"""Finds domains for pod sets in trees, or says what is missing.

Owns the order in which domains are tried, packing and replacing, domains that are closed to a
group, and the words of refusals. It reads trees and books nothing. It must not know groups
that `state` does not count, nor the queue.
"""
