from nri_policy.native._numa_node cimport NumaNode
from nri_policy.native._numa_request cimport Request, Work

cdef int score(NumaNode node, Request request, int strategy, Work work) noexcept
