cimport cython
from libc.stdint cimport uint64_t

cdef enum:
    LIMIT = 8192    # ids are below this: the kernel's largest NR_CPUS
    INLINE = 4      # words kept inside the object: 256 ids without a second allocation

@cython.final
cdef class CPUSet:
    cdef int used                 # words in use: the last of them is non-zero, 0 for the empty set
    cdef uint64_t *words          # bit i of word w is id 64 * w + i; points to `inline` or to the heap
    cdef uint64_t inline[INLINE]
    cdef Py_hash_t hash           # -1 until asked for
    cdef void _steal(self, CPUSet other) noexcept

cdef CPUSet from_words(const uint64_t *words, int count)
