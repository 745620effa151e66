"""Finds domains for pod sets in trees, or says what is missing.

Owns the order in which domains are tried, packing and replacing, domains that are closed to a
group, and the words of refusals. It reads trees and books nothing. It must not know other groups
than those that `state` counts, nor which of them is next.
"""
