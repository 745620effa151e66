from libc.stdint cimport int32_t


cdef class Places:
    cdef int32_t *leaf
    cdef int32_t *pods
    cdef int size
