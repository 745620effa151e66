from nri_policy._candidates cimport Order, Row
from nri_policy._counts cimport Counts

cdef int balance(Counts counts, Row into, int level, int wanted, int need, Order order) except -2
