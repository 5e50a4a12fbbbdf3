/* Included before the compiler's own headers. An object that the collector does not know has no place in the list of
   CPython 3.11's "trashcan", which what is freed 50 levels deep waits in; mypyc puts it there all the same, and what
   stands before the object in memory would be overwritten. Such an object is freed at once. */
#include <Python.h>
#if PY_VERSION_HEX >= 0x030D0000
#error "Look first at how this version of Python puts off what is freed many levels deep"
#endif
#undef Py_TRASHCAN_BEGIN
#define Py_TRASHCAN_BEGIN(op, dealloc) \
    Py_TRASHCAN_BEGIN_CONDITION(op, PyObject_IS_GC((PyObject *)(op)) && \
                                        _PyTrash_cond((PyObject *)(op), (destructor)(dealloc)))
