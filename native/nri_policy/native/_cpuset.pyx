"""Immutable sets of CPU ids (or memory node ids) as arrays of 64-bit words.

Owns the representation and the kernel's two text formats (lists and masks); knows nothing of machines. A set stores
only the words up to its highest id, so equal sets have equal bytes whatever machine they come from.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "bits.h" nogil:
    int bits_count(const uint64_t *words, int n)
    int bits_lowest(uint64_t word)
    int bits_highest(uint64_t word)


cdef CPUSet _new(int words):
    """Return a set with room for *words* zero words; the caller fills them and calls _trim."""
    cdef CPUSet result = CPUSet.__new__(CPUSet)
    result.hash = -1
    if words > INLINE:
        result.words = <uint64_t *> PyMem_Calloc(words, sizeof(uint64_t))
        if result.words == NULL:
            raise MemoryError
    result.used = words
    return result


cdef inline CPUSet _trim(CPUSet result):
    while result.used and result.words[result.used - 1] == 0:
        result.used -= 1
    return result


cdef CPUSet from_words(const uint64_t *words, int count):
    """Return the set whose bits are words[0..count-1]."""
    cdef CPUSet result
    while count and words[count - 1] == 0:
        count -= 1
    result = _new(count)
    memcpy(result.words, words, count * sizeof(uint64_t))
    return result


cdef inline void _fill(uint64_t *words, int low, int high) noexcept nogil:
    """Set the bits low..high, both included."""
    cdef int first = low >> 6, last = high >> 6, w
    cdef uint64_t head = (~<uint64_t> 0) << (low & 63)
    cdef uint64_t tail = (~<uint64_t> 0) >> (63 - (high & 63))
    if first == last:
        words[first] |= head & tail
        return
    words[first] |= head
    for w in range(first + 1, last):
        words[w] = ~<uint64_t> 0
    words[last] |= tail


cdef int _number(str text, str whole) except -1:
    # int() alone would take signs, blanks, underscores and non-ASCII digits
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"bad CPU list {_quote(whole)}: {_quote(text)} is not a number")
    text = text.lstrip("0") or "0"
    if len(text) > 4 or int(text) >= LIMIT:
        raise ValueError(f"bad CPU list {_quote(whole)}: {_quote(text)} is above {LIMIT - 1}")
    return int(text)


cdef str _quote(str text):
    return repr(text if len(text) <= 80 else text[:77] + "...")


@cython.final
@cython.freelist(64)
cdef class CPUSet:
    """An immutable, hashable set of ids 0..8191.

    Ordered by inclusion like frozenset; `str()` gives the kernel's list format.
    """

    def __cinit__(self):
        self.words = self.inline
        self.hash = -1

    def __init__(self, ids=()):
        """Take the *ids* of any iterable; ValueError for one outside 0..8191."""
        cdef int i, top = -1
        cdef list members = []
        cdef CPUSet made
        for member in ids:
            if not isinstance(member, int):
                raise TypeError(f"a CPU id is an integer, not {type(member).__name__}")
            if not 0 <= member < LIMIT:
                raise ValueError(f"CPU id {member} is not in 0..{LIMIT - 1}")
            members.append(member)
            if member > top:
                top = member
        if self.used:
            raise TypeError("a CPUSet is immutable")
        made = _new((top >> 6) + 1)
        for i in members:
            made.words[i >> 6] |= (<uint64_t> 1) << (i & 63)
        self._steal(made)

    cdef void _steal(self, CPUSet other) noexcept:
        self.used = other.used
        if other.words == other.inline:
            memcpy(self.inline, other.inline, sizeof(self.inline))
        else:
            self.words = other.words
            other.words = other.inline
            other.used = 0

    def __dealloc__(self):
        if self.words != self.inline:
            PyMem_Free(self.words)

    @staticmethod
    def parse(text):
        """Return the set that a kernel list names: `0-3,8,10-12`, strides `0-31:2/4`, blank for none.

        White space and NUL bytes around the list are ignored (some kernels write them). ValueError quotes bad text.
        """
        cdef str whole = text
        cdef str stripped = whole.strip("\0\n\t ")
        cdef CPUSet result = _new(LIMIT >> 6)
        cdef int low, high, take, step, start
        if not stripped:
            return _trim(result)
        for part in stripped.split(","):
            span, colon, stride = part.partition(":")
            first, dash, last = span.partition("-")
            low = _number(first, whole)
            high = _number(last, whole) if dash else low
            if high < low:
                raise ValueError(f"bad CPU list {_quote(whole)}: {_quote(span)} runs backwards")
            if not colon:
                _fill(result.words, low, high)
                continue
            used, slash, group = stride.partition("/")
            if not (dash and slash):
                raise ValueError(f"bad CPU list {_quote(whole)}: {_quote(part)} is not FIRST-LAST:USED/GROUP")
            take, step = _number(used, whole), _number(group, whole)
            if not 0 < take <= step:
                raise ValueError(f"bad CPU list {_quote(whole)}: {_quote(part)} needs 0 < USED <= GROUP")
            for start in range(low, high + 1, step):
                _fill(result.words, start, min(start + take - 1, high))
        return _trim(result)

    @staticmethod
    def from_mask(text):
        """Return the set of a kernel mask: hexadecimal 32-bit words, most significant first, as in `00ff,ffffffff`.

        ValueError quotes bad text.
        """
        cdef str whole = text
        cdef str stripped = whole.strip("\0\n\t ")
        digits = ""
        for index, word in enumerate(stripped.split(",")):
            if not word or len(word) > 8 or any(c not in "0123456789abcdefABCDEF" for c in word):
                raise ValueError(f"bad CPU mask {_quote(whole)}: {_quote(word)} is not a 32-bit hexadecimal word")
            digits += word if index == 0 else word.rjust(8, "0")
        value = int(digits, 16)
        if value.bit_length() > LIMIT:
            raise ValueError(f"bad CPU mask {_quote(whole)}: it names ids above {LIMIT - 1}")
        raw = value.to_bytes(LIMIT >> 3, "little")
        return from_words(<const uint64_t *> <const char *> raw, LIMIT >> 6)

    @staticmethod
    def union(sets):
        """Return the union of any number of sets."""
        cdef CPUSet result = _new(LIMIT >> 6), each
        cdef int w
        for each in sets:
            for w in range(each.used):
                result.words[w] |= each.words[w]
        return from_words(result.words, result.used)

    def __str__(self):
        cdef list parts = []
        cdef int start = -1, i, limit = self.used << 6
        cdef int previous = -1
        for i in self:
            if start < 0:
                start = i
            elif i != previous + 1:
                parts.append(f"{start}-{previous}" if previous > start else f"{start}")
                start = i
            previous = i
        if start >= 0:
            parts.append(f"{start}-{previous}" if previous > start else f"{start}")
        return ",".join(parts)

    def __repr__(self):
        return f"CPUSet({str(self)!r})"

    def __iter__(self):
        cdef list members = []
        cdef int w
        cdef uint64_t word
        for w in range(self.used):
            word = self.words[w]
            while word:
                members.append((w << 6) + bits_lowest(word))
                word &= word - 1
        return iter(members)

    def __len__(self):
        return bits_count(self.words, self.used)

    def __bool__(self):
        return self.used != 0

    def __contains__(self, member):
        cdef int i
        if not isinstance(member, int) or not 0 <= member < LIMIT:
            return False
        i = member
        return (i >> 6) < self.used and (self.words[i >> 6] >> (i & 63)) & 1 == 1

    def __hash__(self):
        cdef int w
        cdef uint64_t mixed = 0x9E3779B97F4A7C15
        if self.hash == -1:
            for w in range(self.used):
                mixed = (mixed ^ self.words[w]) * <uint64_t> 0xFF51AFD7ED558CCD
                mixed ^= mixed >> 32
            self.hash = <Py_hash_t> mixed
            if self.hash == -1:
                self.hash = -2
        return self.hash

    def __eq__(self, other):
        if not isinstance(other, CPUSet):
            return NotImplemented
        return _equal(self, <CPUSet> other)

    def __le__(self, other):
        if not isinstance(other, CPUSet):
            return NotImplemented
        return _subset(self, <CPUSet> other)

    def __lt__(self, other):
        if not isinstance(other, CPUSet):
            return NotImplemented
        return _subset(self, <CPUSet> other) and not _equal(self, <CPUSet> other)

    def __ge__(self, other):
        if not isinstance(other, CPUSet):
            return NotImplemented
        return _subset(<CPUSet> other, self)

    def __gt__(self, other):
        if not isinstance(other, CPUSet):
            return NotImplemented
        return _subset(<CPUSet> other, self) and not _equal(self, <CPUSet> other)

    def __and__(self, other):
        if not (isinstance(self, CPUSet) and isinstance(other, CPUSet)):
            return NotImplemented
        cdef CPUSet a = <CPUSet> self, b = <CPUSet> other
        cdef int w
        cdef CPUSet result = _new(min(a.used, b.used))
        for w in range(result.used):
            result.words[w] = a.words[w] & b.words[w]
        return _trim(result)

    def __sub__(self, other):
        if not (isinstance(self, CPUSet) and isinstance(other, CPUSet)):
            return NotImplemented
        cdef CPUSet a = <CPUSet> self, b = <CPUSet> other
        cdef int w
        cdef CPUSet result = _new(a.used)
        for w in range(a.used):
            result.words[w] = a.words[w] & ~b.words[w] if w < b.used else a.words[w]
        return _trim(result)

    def __or__(self, other):
        if not (isinstance(self, CPUSet) and isinstance(other, CPUSet)):
            return NotImplemented
        cdef CPUSet a = <CPUSet> self, b = <CPUSet> other
        cdef int w
        if a.used < b.used:
            a, b = b, a
        cdef CPUSet result = _new(a.used)
        for w in range(a.used):
            result.words[w] = a.words[w] | b.words[w] if w < b.used else a.words[w]
        return result

    def __xor__(self, other):
        if not (isinstance(self, CPUSet) and isinstance(other, CPUSet)):
            return NotImplemented
        cdef CPUSet a = <CPUSet> self, b = <CPUSet> other
        cdef int w
        if a.used < b.used:
            a, b = b, a
        cdef CPUSet result = _new(a.used)
        for w in range(a.used):
            result.words[w] = a.words[w] ^ b.words[w] if w < b.used else a.words[w]
        return _trim(result)

    def isdisjoint(self, CPUSet other not None):
        """Return whether the two sets share no id."""
        cdef int w
        for w in range(min(self.used, other.used)):
            if self.words[w] & other.words[w]:
                return False
        return True

    def first(self, n):
        """Return the lowest *n* ids; ValueError where there are fewer."""
        cdef int wanted = n, w, here
        cdef uint64_t word, kept
        cdef CPUSet result
        if wanted < 0 or wanted > bits_count(self.words, self.used):
            raise ValueError(f"cannot take {n} ids from {len(self)}: {_quote(str(self))}")
        result = _new(self.used)
        for w in range(self.used):
            if not wanted:
                break
            here = bits_count(&self.words[w], 1)
            if here <= wanted:
                result.words[w] = self.words[w]
                wanted -= here
                continue
            word, kept = self.words[w], 0
            while wanted:
                kept |= word & (~word + 1)
                word &= word - 1
                wanted -= 1
            result.words[w] = kept
        return _trim(result)

    @property
    def lowest(self):
        """The lowest id; ValueError for the empty set."""
        cdef int w = 0
        if not self.used:
            raise ValueError("the empty set has no lowest id")
        while self.words[w] == 0:
            w += 1
        return (w << 6) + bits_lowest(self.words[w])

    @property
    def highest(self):
        """The highest id; ValueError for the empty set."""
        if not self.used:
            raise ValueError("the empty set has no highest id")
        return ((self.used - 1) << 6) + bits_highest(self.words[self.used - 1])

    def __reduce__(self):
        return CPUSet.parse, (str(self),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


cdef inline bint _equal(CPUSet a, CPUSet b) noexcept:
    return a.used == b.used and memcmp(a.words, b.words, a.used * sizeof(uint64_t)) == 0


cdef inline bint _subset(CPUSet a, CPUSet b) noexcept:
    cdef int w
    if a.used > b.used:
        return False
    for w in range(a.used):
        if a.words[w] & ~b.words[w]:
            return False
    return True
