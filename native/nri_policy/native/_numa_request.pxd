cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from nri_policy.native._amount cimport amount_t
from nri_policy.native._numa_node cimport Columns, NumaNode

cdef enum:  # of a resource, in a request
    SHARED = 1          # counts for Guaranteed pods only: cpu, memory, hugepages-*
    HOST = 2            # may be the node's alone, without zones
    ALWAYS = 4          # counts as allocatable on every node


@cython.final
cdef class Request:
    cdef readonly bint guaranteed, best_effort
    cdef int steps, width
    cdef amount_t *amounts          # steps * width
    cdef int64_t *whole             # steps * width
    cdef int64_t *weights           # width
    cdef int32_t *names             # width: resource index; -1: no node has it
    cdef uint8_t *kinds             # width: SHARED, HOST, ALWAYS
    cdef uint8_t *verdict           # steps: the verdict if the step does not fit
    cdef uint8_t *stays             # steps: whether the container still runs when the next one starts
    cdef uint8_t *asked             # steps * width


@cython.final
cdef class Work:
    cdef Request request
    cdef Columns columns        # of the node for which `column` and `hosted` were made
    cdef amount_t *cells        # zones * width: free amounts, by zone and resource of the request
    cdef amount_t *sums         # (zones + 1) * width: free amounts of the zones chosen so far
    cdef amount_t *most         # (zones + 1) * width: the largest amount of the candidates from here on
    cdef double *shares         # width: requested / free, in one zone
    cdef long budget            # sets of zones still to try for one node, at most
    cdef int32_t *column        # width: column of the node, -1 if none of its zones lists it
    cdef int *candidates        # zones that list every requested resource
    cdef int *chosen
    cdef int *best
    cdef int *placed            # steps: the zone of each
    cdef uint8_t *hosted        # width: whether the node has it to allocate
    cdef bint gathered          # whether `cells` is what the node's zones have available

    cdef void resolve(self, NumaNode node) noexcept
    cdef void gather(self, NumaNode node, const amount_t *source) noexcept
