from nri_policy.native._numa_node cimport NumaNode
from nri_policy.native._numa_request cimport Request, Work

cdef int fewest_zones(NumaNode node, Request request, Work work) noexcept
