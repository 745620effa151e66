"""The table of criteria of one decision, spec placement.md §4: comparing, packing and unpacking it.

Owns the columns and their order in comparisons. The supply, the memory and others fill them.
"""

import struct

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from nri_policy.native._cpuset cimport LIMIT

cdef enum:
    VERSION = 1     # of packed tables
    SAME = 0x80     # in a column's first byte: it has one cell, for all pools; the rest is the bytes of a cell

_COLUMNS = (*(column.name for column in Column), "SHORTFALL", "EXCLUDED")  # all that is known of a pool
_AT = {name: at for at, name in enumerate(_COLUMNS)}
_HEAD = struct.Struct("=QQ")  # VERSION, and the number of bytes of the names that follow
_NAMES = ",".join(_COLUMNS).encode()
_PACKED_NAMES = _HEAD.pack(VERSION, len(_NAMES)) + _NAMES


@cython.final
cdef class Table:
    """The criteria of one decision: a row a pool; see Column, higher is better."""

    def __cinit__(self, int count):
        self.count = count
        self.values = <double *> PyMem_Calloc(count * WIDTH, sizeof(double))
        self.shortfall = <int64_t *> PyMem_Calloc(count, sizeof(int64_t))
        self.excluded = <char *> PyMem_Calloc(count, 1)
        if not (self.values and self.shortfall and self.excluded):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.values)
        PyMem_Free(self.shortfall)
        PyMem_Free(self.excluded)

    def row(self, int pool):
        """Return the values of a pool's criteria."""
        if not 0 <= pool < self.count:
            raise IndexError(f"no pool {pool}")
        return tuple([self.values[pool * WIDTH + column] for column in range(WIDTH)])

    def fits(self, int pool):
        """Return whether *pool* can hold the request and is in the comparison."""
        if not 0 <= pool < self.count:
            raise IndexError(f"no pool {pool}")
        return not self.excluded[pool] and not self.shortfall[pool]

    def missing(self, int pool):
        """Return the milli-CPU that *pool* lacks to hold the request, 0 where it has enough."""
        if not 0 <= pool < self.count:
            raise IndexError(f"no pool {pool}")
        return self.shortfall[pool]

    def exclude(self, int pool):
        """Exclude *pool* from the comparison."""
        if not 0 <= pool < self.count:
            raise IndexError(f"no pool {pool}")
        self.excluded[pool] = True

    def fill(self, int column, values):
        """Set a Column of all rows to *values*, an array of doubles, one a pool; ValueError for anything else."""
        cdef int pool
        cdef Py_buffer view  # a typed memoryview would be an object of its own, each time
        if not 0 <= column < WIDTH:
            raise IndexError(f"no column {column}")
        PyObject_GetBuffer(values, &view, PyBUF_FORMAT)
        try:
            if view.itemsize != sizeof(double) or view.format[0] != b"d":
                raise ValueError("the values are no doubles")
            if view.len != self.count * <Py_ssize_t> sizeof(double):
                raise ValueError(f"{view.len // view.itemsize} values for {self.count} pools")
            for pool in range(self.count):
                self.values[pool * WIDTH + column] = (<double *> view.buf)[pool]
        finally:
            PyBuffer_Release(&view)

    def best(self, int first=0, int last=-1):
        """Return the pool with the lexicographically highest row of those that can hold the request, else None.

        Of the pools from *first* to *last* only; -1: to the top.
        """
        cdef int pool, best = -1
        if last < 0:
            last = self.count - 1
        if not 0 <= first <= last < self.count:
            raise IndexError(f"no pools {first} to {last}")
        for pool in range(first, last + 1):
            if not (self.excluded[pool] or self.shortfall[pool]):
                if best < 0 or self._higher(pool, best, WIDTH):
                    best = pool
        return best if best >= 0 else None

    def outranks(self, int pool, int other):
        """Return whether *pool* is better than *other* by the criteria down to and including depth."""
        if not (0 <= pool < self.count and 0 <= other < self.count):
            raise IndexError(f"no pool {pool} or {other}")
        return self._higher(pool, other, DEPTH + 1)

    cdef bint _higher(self, int pool, int other, int columns) noexcept:
        """Whether the row of *pool* is the higher one in the first *columns*."""
        cdef double *a = self.values + pool * WIDTH
        cdef double *b = self.values + other * WIDTH
        cdef int column
        for column in range(columns):
            if a[column] != b[column]:
                return a[column] > b[column]
        return False

    def closest(self):
        """Return the pool in the comparison that lacks least, the highest id (the widest) among equals.

        The top, if none is in the comparison.
        """
        cdef int pool, closest = -1
        for pool in range(self.count):
            if not self.excluded[pool]:
                if closest < 0 or self.shortfall[pool] <= self.shortfall[closest]:
                    closest = pool
        return closest if closest >= 0 else self.count - 1

    def pack(self):
        """Return the table as bytes for `unpack`: the names of the columns, then their cells.

        A column of equal cells stores one cell; whole numbers use the width of the largest one.
        """
        cdef int pool, column, cells, width
        cdef uint64_t first, cell
        cdef char *packed = <char *> PyMem_Malloc(CELLS * (1 + <Py_ssize_t> self.count * sizeof(uint64_t)))
        cdef char *end = packed
        if packed == NULL:
            raise MemoryError
        for column in range(CELLS):
            cells, first = 1, self._cell(0, column)
            width = _width(first, column)
            for pool in range(1, self.count):
                cell = self._cell(pool, column)
                if cell != first:  # most columns have one value
                    cells = self.count
                    width = max(width, _width(cell, column))
            end[0] = <char> (width | (SAME if cells == 1 else 0))
            end += 1
            for pool in range(cells):
                _put(end, self._cell(pool, column), column, width)
                end += width
        try:
            return _PACKED_NAMES + packed[:end - packed]
        finally:
            PyMem_Free(packed)

    @staticmethod
    def unpack(bytes packed not None, int count):
        """Return the table of *count* pools in the bytes from `pack`.

        Raises ValueError for other bytes. Missing columns are 0, unknown ones are skipped.
        """
        cdef Table table
        cdef const char *at = packed
        cdef const char *end = at + len(packed)
        cdef int pool, column, width, cells
        if not 0 < count <= 2 * LIMIT:
            raise ValueError(f"{count} is no number of pools")
        table = Table(count)
        names, start = _columns_of(packed)
        at += <Py_ssize_t> start
        for name in names:
            column = _AT.get(name, -1)
            if at >= end:
                raise ValueError("not a table of criteria")
            width = at[0] & (SAME - 1)
            cells = 1 if at[0] & SAME else count
            at += 1
            if width not in (1, 2, 4, 8) or end - at < <Py_ssize_t> cells * width:
                raise ValueError("not a table of criteria")
            for pool in range(count):
                if column >= 0:
                    table._set_cell(pool, column, _get(at + (pool * width if cells > 1 else 0), column, width))
            at += cells * width
        if at != end:
            raise ValueError("not a table of criteria")
        return table

    cdef uint64_t _cell(self, int pool, int column) noexcept:
        """Return the bits of a value: of a criterion, else of the shortfall, else whether it is excluded."""
        cdef uint64_t cell = 0
        if column < WIDTH:
            memcpy(&cell, &self.values[pool * WIDTH + column], sizeof(uint64_t))
        elif column == WIDTH:
            cell = <uint64_t> self.shortfall[pool]
        else:
            cell = self.excluded[pool]
        return cell

    cdef void _set_cell(self, int pool, int column, uint64_t cell) noexcept:
        if column < WIDTH:
            memcpy(&self.values[pool * WIDTH + column], &cell, sizeof(uint64_t))
        elif column == WIDTH:
            self.shortfall[pool] = <int64_t> cell
        else:
            self.excluded[pool] = cell != 0


cdef int _width(uint64_t cell, int column) noexcept:
    """Return how many bytes the cell of a *column* needs."""
    cdef int64_t whole = <int64_t> cell
    cdef double value, again
    if column < WIDTH:
        memcpy(&value, &cell, sizeof(double))
        if not -0x80000000 <= value <= 0x7FFFFFFF:
            return 8
        whole = <int64_t> value
        again = <double> whole
        if memcmp(&again, &value, sizeof(double)):  # a fraction, or the zero below zero
            return 8
    if -0x80 <= whole <= 0x7F:
        return 1
    if -0x8000 <= whole <= 0x7FFF:
        return 2
    return 4 if -0x80000000 <= whole <= 0x7FFFFFFF else 8


cdef void _put(char *at, uint64_t cell, int column, int width) noexcept:
    """Write a cell's *width* bytes."""
    cdef int64_t whole = <int64_t> cell
    cdef double value
    cdef int8_t one
    cdef int16_t two
    cdef int32_t four
    if width == 8:
        memcpy(at, &cell, 8)
        return
    if column < WIDTH:
        memcpy(&value, &cell, sizeof(double))
        whole = <int64_t> value
    one, two, four = <int8_t> whole, <int16_t> whole, <int32_t> whole
    memcpy(at, <void *> &one if width == 1 else <void *> &two if width == 2 else <void *> &four, width)


cdef uint64_t _get(const char *at, int column, int width) noexcept:
    """Return the cell that `_put` wrote."""
    cdef uint64_t cell = 0
    cdef int64_t whole = 0
    cdef double value
    cdef int8_t one
    cdef int16_t two
    cdef int32_t four
    if width == 8:
        memcpy(&cell, at, 8)
        return cell
    if width == 1:
        memcpy(&one, at, 1)
        whole = one
    elif width == 2:
        memcpy(&two, at, 2)
        whole = two
    else:
        memcpy(&four, at, 4)
        whole = four
    if not 0 <= column < WIDTH:
        return <uint64_t> whole
    value = <double> whole
    memcpy(&cell, &value, sizeof(double))
    return cell


def _columns_of(bytes packed):
    """Return the names of a packed table's columns, and the offset of their cells; ValueError."""
    if len(packed) >= _HEAD.size:
        version, length = _HEAD.unpack_from(packed)
        start = _HEAD.size + length
        if version == VERSION and start <= len(packed):
            return packed[_HEAD.size:start].decode("ascii").split(","), start
    raise ValueError("not a table of criteria")
