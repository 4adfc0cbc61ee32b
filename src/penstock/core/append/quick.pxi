# `append` as the interpreter calls it. For each call, Cython fills a table with the defaults of ten
# keyword arguments and counts references to each of them, which takes as long as writing the frame.
# So `append` is a method with CPython's own calling convention: it handles a call with one bytes
# object, or one object to encode, alone or with a key and a topic, and leaves all other calls to
# `_append_in_full`.

cdef extern from "Python.h":
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    enum: METH_FASTCALL, METH_KEYWORDS
    object PyDescr_NewMethod(type owner, PyMethodDef *method)
    object PyObject_Vectorcall(object function, PyObject **args, size_t count, PyObject *names)


cdef enum:
    ARGUMENTS_MAX = 16  # more than append has, including self

cdef object _KEY = "key"  # interned, as names of arguments are in nearly every call
cdef object _TOPIC = "topic"
cdef PyMethodDef _append_method
cdef object _append_in_full
cdef bytes _append_doc


cdef bint takes_quickly(PyObject **args, tuple names):
    """Whether the keyword arguments are a key that is bytes, a topic that is str, or both."""
    cdef Py_ssize_t i
    cdef PyObject *name
    for i in range(PyTuple_GET_SIZE(names)):
        name = PyTuple_GET_ITEM(names, i)
        if name == <PyObject *>_KEY:
            if not PyBytes_CheckExact(<object>args[i]):
                return False
        elif name != <PyObject *>_TOPIC or not PyUnicode_CheckExact(<object>args[i]):
            return False
    return True


cdef object append_named(LogCore self, object value, PyObject **args, tuple names):
    """Append a value with the arguments that `takes_quickly` has found; None if it is not bytes."""
    cdef Parts p
    cdef Py_ssize_t i
    if not self._plain:
        value = self._coder.encoded(value, self.path)
    if not PyBytes_CheckExact(value):
        return None
    parts_plain(&p, value)
    if p.value_len > PSK_VALUE_BYTES_MAX:
        return None
    for i in range(PyTuple_GET_SIZE(names)):
        if PyTuple_GET_ITEM(names, i) == <PyObject *>_KEY:
            set_key(&p, None, <object>args[i])
        else:
            set_topic(&p, <object>args[i])
    return self.append_parts(NULL, &p, NULL, 1, parts_bytes(&p), None)


cdef object append_quickly(LogCore self, PyObject **args, Py_ssize_t count, PyObject *names):
    cdef Parts p
    cdef object value
    if count == 1 and names == NULL:
        value = <object>args[0]
        if not self._plain:
            value = self._coder.encoded(value, self.path)
        if PyBytes_CheckExact(value):
            parts_plain(&p, value)
            if p.value_len <= PSK_VALUE_BYTES_MAX:
                return self.append_parts(
                    NULL, &p, NULL, 1, align8(PSK_FRAME_HEADER_BYTES + p.value_len), None)
    elif count == 1 and takes_quickly(args + 1, <tuple>names):
        value = append_named(self, <object>args[0], args + 1, <tuple>names)
        if value is not None:
            return value
    return append_otherwise(self, args, count, names)


cdef object append_otherwise(LogCore self, PyObject **args, Py_ssize_t count, PyObject *names):
    """Leave a call to `_append_in_full`."""
    cdef PyObject *with_self[ARGUMENTS_MAX]
    cdef Py_ssize_t i, given = count
    if names != NULL:
        given += PyTuple_GET_SIZE(<object>names)
    if given >= ARGUMENTS_MAX:
        raise TypeError(f"append() takes one value and keyword arguments, got {given} arguments")
    with_self[0] = <PyObject *>self
    for i in range(given):
        with_self[i + 1] = args[i]
    try:
        return PyObject_Vectorcall(_append_in_full, with_self, <size_t>count + 1, names)
    except TypeError as error:
        said = str(error)
        if not said.startswith("_append_in_full"):
            raise
        raise TypeError("append" + said.removeprefix("_append_in_full")) from None


cdef object quick_append():
    """The method `append` of LogCore, with the documentation of `_append_in_full`."""
    global _append_in_full, _append_doc
    _append_in_full = LogCore._append_in_full
    _append_doc = (
        "append($self, value, *, key=None, topic=None, headers=None, time=None, expect=None, producer=None, "
        "durable=False, timeout=None, codec=None, tags=None, not_before=None, ttl=None)\n--\n\n" + _append_in_full.__doc__
    ).encode()
    _append_method.ml_name = "append"
    _append_method.ml_meth = <PyCFunction><void *>append_quickly
    _append_method.ml_flags = METH_FASTCALL | METH_KEYWORDS
    _append_method.ml_doc = _append_doc
    return PyDescr_NewMethod(LogCore, &_append_method)
