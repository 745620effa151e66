"""Parts of JSON texts, found without decoding the rest: the items of a list, and the fields that are read of each.

Rule 1: what is not kept is checked by JSON's grammar alone; who needs UTF-8 checks that, unless a text is ASCII.
Rule 2: None stands for all that is unusual or wrong here. A full decoder then reads the text, and has the messages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "<endian.h>" nogil:
    uint64_t le64toh(uint64_t)

cdef extern from *:
    int __builtin_ctzll(uint64_t) nogil

cdef enum:
    MAX_DEPTH = 200
    MAX_TEXTS = 2  # of one object


cdef struct Field:
    const char *name
    Py_ssize_t size
    unsigned kept  # a bit for each text that gets it


cdef struct Span:
    const char *start
    Py_ssize_t size


cdef class Fields:
    """The fields that are kept of an object, for each of one or two texts.

    A dict has the fields of an object, or of each object in a list, by name: None keeps the whole value.
    """

    cdef Field *fields
    cdef Py_ssize_t count
    cdef list names, below  # of each field: its name, and the Fields of its value or None
    cdef int texts

    def __init__(self, *trees):
        assert 0 < len(trees) <= MAX_TEXTS
        self.texts = len(trees)
        self.below = []
        self.names = list({name.encode(): None for tree in trees for name in tree})
        self.count = len(self.names)
        self.fields = <Field *> PyMem_Calloc(self.count + 1, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError
        for index, name in enumerate(self.names):
            given = [tree.get(name.decode(), {}) for tree in trees]
            self.below.append(None if None in given else Fields(*given))
            self.fields[index].name = name
            self.fields[index].size = len(name)
            for text, tree in enumerate(trees):
                self.fields[index].kept |= (name.decode() in tree) << text

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def texts_of(self, text not None):
        """Return of the JSON *text* of an object a text for each dict of fields, without blanks; or None."""
        cdef Py_buffer given
        cdef char *made
        cdef char *start
        cdef char *ends[MAX_TEXTS]
        cdef const char *end
        cdef int index
        cdef list found = []
        PyObject_GetBuffer(text, &given, PyBUF_SIMPLE)
        made = <char *> PyMem_Malloc(self.texts * given.len + 1)
        try:
            if made == NULL:
                raise MemoryError
            for index in range(self.texts):
                ends[index] = made + index * given.len
            end = <const char *> given.buf + given.len
            if _keep(skip_blank(<const char *> given.buf, end), end, self, (1 << self.texts) - 1, ends) == NULL:
                return None
            for index in range(self.texts):
                start = made + index * given.len
                found.append(PyBytes_FromStringAndSize(start, ends[index] - start))
            return tuple(found)
        finally:
            PyMem_Free(made)
            PyBuffer_Release(&given)


def items_of(text not None):
    """Return the kind, start and end of each object in a List in JSON, and whether *text* is ASCII; or None."""
    cdef Py_buffer given
    cdef list found = []
    cdef uint64_t seen = 0
    PyObject_GetBuffer(text, &given, PyBUF_SIMPLE)
    try:
        if not _read_list(<const char *> given.buf, given.len, found, &seen):
            return None
        return found, not seen & 0x8080808080808080ULL  # the highest bit of each byte
    finally:
        PyBuffer_Release(&given)


cdef bint _read_list(const char *start, Py_ssize_t size, list found, uint64_t *seen) except -1:
    cdef const char *end = start + size
    cdef const char *at = skip_blank(start, end)
    cdef const char *name
    cdef const char *value
    cdef bint is_list = False, has_items = False
    if at == end or at[0] != b"{":
        return False
    while True:
        name = skip_blank(at + 1, end)
        at = value = skip_name(name, end, seen)
        if at == NULL:
            return False
        if is_text(name, b'"items"', 7):
            if has_items:
                return False
            has_items = True
            at = _read_items(at, start, end, found, seen)
        else:
            at = skip_value(at, end, MAX_DEPTH, seen)
            if at != NULL and is_text(name, b'"kind"', 6):
                is_list = at - value == 6 and is_text(value, b'"List"', 6)
        at = skip_blank(at, end)
        if at == NULL or at == end:
            return False
        if at[0] == b"}":
            return is_list and has_items and skip_blank(at + 1, end) == end
        if at[0] != b",":
            return False


cdef const char *_read_items(
    const char *at, const char *start, const char *end, list found, uint64_t *seen
) except? NULL:
    """Return what is behind the list of objects at *at*, or NULL."""
    cdef Span kind
    cdef const char *item
    cdef dict kinds = {}
    if at == end or at[0] != b"[":
        return NULL
    item = skip_blank(at + 1, end)
    if item != end and item[0] == b"]":
        return item + 1
    while True:
        at = read_item(item, end, &kind, seen)
        if at == NULL:
            return NULL
        name = PyBytes_FromStringAndSize(kind.start, kind.size)
        if not name.isascii():
            return NULL
        if name not in kinds:
            kinds[name] = name.decode()
        found.append((kinds[name], item - start, at - start))
        at = skip_blank(at, end)
        if at == end:
            return NULL
        if at[0] == b"]":
            return at + 1
        if at[0] != b",":
            return NULL
        item = skip_blank(at + 1, end)


cdef const char *read_item(const char *at, const char *end, Span *kind, uint64_t *seen) noexcept nogil:
    """Return what is behind the object at *at*, and its kind; NULL if it has none."""
    cdef const char *name
    cdef const char *value
    kind.start = NULL
    if at == end or at[0] != b"{":
        return NULL
    while True:
        name = skip_blank(at + 1, end)
        value = skip_name(name, end, seen)
        at = skip_value(value, end, MAX_DEPTH, seen)
        if at == NULL:
            return NULL
        if is_text(name, b'"kind"', 6):
            if value[0] != b'"' or memchr(value, b"\\", at - value) != NULL:
                return NULL
            kind.start, kind.size = value + 1, at - value - 2
        at = skip_blank(at, end)
        if at == end:
            return NULL
        if at[0] == b"}" and kind.start != NULL:
            return at + 1
        if at[0] != b",":
            return NULL


cdef const char *_keep(
    const char *at, const char *end, Fields fields, unsigned kept, char **ends
) except? NULL:
    """Copy to the texts *kept* what *fields* has of the value at *at*; return what is behind it, or NULL."""
    cdef char close
    if at == NULL or at == end:
        return NULL
    if fields is None or (at[0] != b"{" and at[0] != b"["):
        return copy_value(at, end, kept, ends)
    close = at[0] + 2  # of both brackets
    put(at[0], kept, ends)
    at = skip_blank(at + 1, end)
    if at != end and at[0] == close:
        put(close, kept, ends)
        return at + 1
    while True:
        if close == b"}":
            at = _keep_member(at, end, fields, ends)
        else:
            at = _keep(at, end, fields, kept, ends)
        at = skip_blank(at, end)
        if at == NULL or at == end:
            return NULL
        if at[0] == close:
            put(close, kept, ends)
            return at + 1
        if at[0] != b",":
            return NULL
        if close == b"]":
            put(b",", kept, ends)
        at = skip_blank(at + 1, end)


cdef const char *_keep_member(const char *name, const char *end, Fields fields, char **ends) except? NULL:
    cdef uint64_t seen = 0
    cdef const char *value = skip_name(name, end, &seen)
    cdef Py_ssize_t index, size
    cdef int text
    cdef unsigned kept
    if value == NULL:
        return NULL
    size = <const char *> memchr(name + 1, b'"', value - name) - name - 1
    if memchr(name, b"\\", size) != NULL:
        return NULL
    for index in range(fields.count):
        if fields.fields[index].size == size and not memcmp(fields.fields[index].name, name + 1, size):
            break
    else:
        return skip_value(value, end, MAX_DEPTH, &seen)
    kept = fields.fields[index].kept
    for text in range(MAX_TEXTS):
        if kept >> text & 1:
            if (ends[text] - 1)[0] != b"{":
                put(b",", 1 << text, ends)
            memcpy(ends[text], name, size + 2)
            ends[text] += size + 2
            put(b":", 1 << text, ends)
    return _keep(value, end, <Fields> fields.below[index], kept, ends)


cdef void put(char one, unsigned kept, char **ends) noexcept nogil:
    cdef int text
    for text in range(MAX_TEXTS):
        if kept >> text & 1:
            ends[text][0] = one
            ends[text] += 1


cdef const char *copy_value(const char *at, const char *end, unsigned kept, char **ends) noexcept nogil:
    """Copy the value at *at* without blanks to the texts *kept*; return what is behind it, or NULL."""
    cdef int depth = 0
    cdef uint64_t seen = 0
    cdef int text
    cdef const char *start
    while at != end:
        if at[0] == b'"':
            start, at = at, skip_string(at + 1, end, &seen)
            if at == NULL:
                return NULL
            for text in range(MAX_TEXTS):
                if kept >> text & 1:
                    memcpy(ends[text], start, at - start)
                    ends[text] += at - start
            if not depth:
                return at
        elif is_blank(at[0]):
            if not depth:
                return at
            at = skip_blank(at, end)
        else:
            if at[0] == b"{" or at[0] == b"[":
                depth += 1
            elif not depth and (at[0] == b"}" or at[0] == b"]" or at[0] == b","):
                return at  # behind a number or a word
            elif at[0] == b"}" or at[0] == b"]":
                depth -= 1
                if not depth:
                    put(at[0], kept, ends)
                    return at + 1
            put(at[0], kept, ends)
            at += 1
    return NULL


cdef bint is_text(const char *at, const char *text, Py_ssize_t size) noexcept nogil:
    """Whether a string that ends somewhere behind *at* is this text, which ends with its quote."""
    cdef Py_ssize_t index
    for index in range(size):
        if at[index] != text[index]:
            return False
    return True


cdef inline bint is_blank(char one) noexcept nogil:
    return one == b" " or one == b"\n" or one == b"\t" or one == b"\r"


cdef inline const char *skip_blank(const char *at, const char *end) noexcept nogil:
    cdef uint64_t eight
    if at == NULL:
        return NULL
    while at != end and is_blank(at[0]):
        at += 1
        while end - at >= 8:  # lines begin with many
            memcpy(&eight, at, 8)
            eight = le64toh(eight) ^ 0x2020202020202020ULL
            if eight:
                at += __builtin_ctzll(eight) >> 3
                break
            at += 8
    return at


cdef const char *skip_name(const char *at, const char *end, uint64_t *seen) noexcept nogil:
    """Return the value behind the name at *at*, or NULL."""
    if at == end or at[0] != b'"':
        return NULL
    at = skip_blank(skip_string(at + 1, end, seen), end)
    if at == NULL or at == end or at[0] != b":":
        return NULL
    return skip_blank(at + 1, end)


cdef const char *skip_value(const char *at, const char *end, int depth, uint64_t *seen) noexcept nogil:
    """Return what is behind the value at *at*; NULL if it is wrong, or nested deeper than *depth*."""
    cdef char close
    if at == NULL or at == end or not depth:
        return NULL
    if at[0] == b'"':
        return skip_string(at + 1, end, seen)
    if at[0] != b"{" and at[0] != b"[":
        return skip_scalar(at, end)
    close = at[0] + 2  # of both brackets
    at = skip_blank(at + 1, end)
    if at != end and at[0] == close:
        return at + 1
    while True:
        if close == b"}":
            at = skip_name(at, end, seen)
        at = skip_blank(skip_value(at, end, depth - 1, seen), end)
        if at == NULL or at == end:
            return NULL
        if at[0] == close:
            return at + 1
        if at[0] != b",":
            return NULL
        at = skip_blank(at + 1, end)


cdef const char *skip_string(const char *at, const char *end, uint64_t *seen) noexcept nogil:
    """Return what is behind the string whose opening quote is before *at*, or NULL; *seen* collects all bits."""
    cdef uint64_t eight, each = 0x0101010101010101ULL, quote, escape, stop, bits = 0
    cdef int digit
    while True:
        while end - at >= 8:  # until one of eight bytes is a quote, a backslash or a control character
            memcpy(&eight, at, 8)
            eight = le64toh(eight)
            quote, escape = eight ^ 0x22 * each, eight ^ 0x5C * each
            stop = (quote - each & ~quote | escape - each & ~escape | eight - 0x20 * each & ~eight) & 0x80 * each
            if stop:
                at += __builtin_ctzll(stop) >> 3
                bits |= eight & (stop ^ stop - 1) >> 8
                break
            bits |= eight
            at += 8
        while at != end and at[0] != b'"' and at[0] != b"\\":
            if 0 <= at[0] < 0x20:
                return NULL
            bits |= <unsigned char> at[0]
            at += 1
        seen[0] |= bits
        if at == end:
            return NULL
        if at[0] == b'"':
            return at + 1
        if end - at < 2:
            return NULL
        if at[1] == b"u":
            if end - at < 6:
                return NULL
            for digit in range(2, 6):
                if not is_digit(at[digit]) and not b"a" <= (at[digit] | 0x20) <= b"f":
                    return NULL
            at += 6
        elif memchr(b'"\\/bfnrt', at[1], 8) != NULL:
            at += 2
        else:
            return NULL


cdef const char *skip_scalar(const char *at, const char *end) noexcept nogil:
    """Return what is behind the number or the word at *at*, or NULL."""
    if end - at >= 5 and not memcmp(at, b"false", 5):
        return at + 5
    if end - at >= 4 and (not memcmp(at, b"true", 4) or not memcmp(at, b"null", 4)):
        return at + 4
    if at != end and at[0] == b"-":
        at += 1
    if at != end and at[0] == b"0":
        at += 1
    else:
        at = skip_digits(at, end)
    if at != NULL and at != end and at[0] == b".":
        at = skip_digits(at + 1, end)
    if at != NULL and at != end and (at[0] | 0x20) == b"e":
        at += 1
        if at != end and (at[0] == b"+" or at[0] == b"-"):
            at += 1
        at = skip_digits(at, end)
    return at


cdef const char *skip_digits(const char *at, const char *end) noexcept nogil:
    """Return what is behind one digit or more, or NULL."""
    if at == end or not is_digit(at[0]):
        return NULL
    while at != end and is_digit(at[0]):
        at += 1
    return at


cdef inline bint is_digit(char one) noexcept nogil:
    return b"0" <= one <= b"9"
