/* Python's macros that return a constant, with a reference of their own: included before all else.
 *
 * The kernels run on Python 3.11, too, where None, True and False are counted. The headers of Python
 * 3.12 and of early releases of 3.13 leave out the count, even for the limited API of 3.11: kernels
 * built with them take one reference too many at each return, until Python 3.11 aborts.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#undef Py_RETURN_NOTIMPLEMENTED
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_RETURN_TRUE return Py_NewRef(Py_True)
#define Py_RETURN_FALSE return Py_NewRef(Py_False)
#define Py_RETURN_NOTIMPLEMENTED return Py_NewRef(Py_NotImplemented)
