from nri_policy.native._candidates cimport Order, Row
from nri_policy.native._counts cimport Counts

cdef int balance(Counts counts, Row into, int level, int wanted, int need, Order order) except -2
