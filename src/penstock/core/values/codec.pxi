# Codecs and tags: how values become bytes and back, and the headers that record them.

cdef object _codecs = None


cdef object codecs():
    """The codecs module, which is above this one; loaded when it is first needed."""
    global _codecs
    if _codecs is None:
        name = "penstock.data.codecs"
        try:
            _codecs = _import_module(name)
        except OSError as error:  # for example, no descriptor is left
            raise from_os(error, "loading", error.filename or name) from error
    return _codecs


cdef class Coder:
    """Turns values of one handle into bytes and back, with its log's codec and its own schema.

    Every map of the handle refers to it, so that an event can be decoded on request, even after
    the log was closed. No codec is looked up before that.
    """

    cdef public object name     # of the codec; None until it was looked up
    cdef public object schema
    cdef public object encode   # None for the codec that leaves bytes as they are
    cdef public object decode
    cdef public bint nan_null   # encode a number that is not finite as null in JSON, instead of an error
    cdef object lines           # encodes many values at once, one line each; None if there is no such function
    cdef bint found
    cdef dict others            # by name: for events that were appended with another codec

    def __init__(self, name=None, schema=None):
        self.name = name
        self.schema = schema

    def __reduce__(self):
        raise stays_here(self)

    cpdef find(self):
        """Look the codec up; `NoCodec` each time if this process does not have it."""
        if not self.found:
            self.encode, self.decode = codecs().find(self.name, self.schema)
            if self.name == "json" and self.schema is None:
                self.lines = getattr(getattr(self.encode, "__self__", None), "encode_lines", None)
            self.found = True

    cdef Coder other(self, object name):
        """The same schema with another codec."""
        cdef Coder coder = None
        if not isinstance(name, str):
            raise WrongType(f"codec must be the name of a codec, got {type(name).__name__}")
        if self.others is None:
            self.others = {}
        coder = self.others.get(name)
        if coder is None:
            coder = Coder(name, self.schema if name != "bytes" else None)
            coder.nan_null = self.nan_null
            coder.find()
            self.others[name] = coder
        return coder

    cdef object to_bytes(self, object value, object path):
        """``value`` as it is appended: encoded or, if it is bytes, checked."""
        cdef object data
        if value is None or self.encode is None:
            return value
        try:
            if PyBytes_Check(value):
                data = value if PyBytes_CheckExact(value) else bytes(value)
                self.decode(data)
                return data
            data = self.encode(value)
            if PyObject_CheckBuffer(value):
                self.decode(data)  # an encoder may write such an object unchanged
        except (PenstockError, MemoryError):
            raise
        except Exception as error:
            if type(error).__name__ == "ValidationError":  # from the schema; the value is finite, as it was encoded
                self.refuse_nan(value, path)
            raise BadData(
                f"{path}: the value does not fit {self.described()}; nothing was written: {error}", path=path
            ) from error
        if not PyBytes_CheckExact(data):
            raise BadData(
                f"{path}: the codec {self.name!r} must encode to bytes, got {type(data).__name__}; "
                "nothing was written", path=path)
        if psk_has_null(PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)):
            self.refuse_nan(value, path)
        return data

    cdef int refuse_nan(self, object value, object path) except -1:
        """Refuse numbers that JSON does not have and that its encoder writes as null."""
        if self.nan_null or self.name != "json":
            return 0
        found = not_finite(value)
        if found is not None:
            number, where = found
            raise BadData(
                f"{path}: the value has {number} at `${where}`, which JSON cannot hold; nothing was written; "
                "use None, or open the log with nan='null' to store it as null", path=path)
        return 0

    cdef inline object encoded(self, object value, object path):
        """``value`` encoded; None if it is not an object for a codec that was found."""
        if self.encode is None:
            return None
        if not PyDict_CheckExact(value) and (value is None or PyBytes_Check(value) or is_item(value)):
            return None
        return self.to_bytes(value, path)

    cdef str described(self):
        if self.schema is None:
            return f"the codec {self.name!r}"
        return f"the schema {getattr(self.schema, '__name__', self.schema)} in the codec {self.name!r}"


cdef object data_of(Event event):
    """The value of an event, decoded to an object."""
    cdef Coder coder
    if event.p[PSK_FRAME_KIND] == PSK_KIND_DELETE:
        return None
    coder = coder_of(event)
    if coder is None:
        return event.get_value()
    coder.find()
    if coder.decode is None:
        return event.get_value()
    try:
        return coder.decode(event.get_value())
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        path = str((<SegmentMap>event.owner).path) if isinstance(event.owner, SegmentMap) else None
        raise BadData(
            f"{path or 'an event'}: the value of seq {event.seq} does not fit {coder.described()}: {error}; "
            "event.value has its bytes",
            path=path, seq=event.seq,
        ) from error


cdef Coder coder_of(Event event):
    """The coder of the event; None if its value is plain bytes."""
    cdef Coder coder = log_coder(event)
    if psk_get16(event.p + PSK_FRAME_HEADERS_LEN):
        name = codec_header(event)
        if name is not None and (coder is None or name != coder.name):
            return (Coder() if coder is None else coder).other(name)
    return coder


cdef Coder log_coder(Event event):
    """The coder of the event's log; None if it came from elsewhere, as plain bytes."""
    cdef Coder coder = None
    cdef SegmentMap m
    if isinstance(event.owner, SegmentMap):
        m = <SegmentMap>event.owner
        if m.coder is None:
            m.coder = Coder()
        coder = m.coder
        if coder.name is None:
            coder.name = codecs().name_in(m.settings, m.path)
    elif isinstance(event.owner, tuple):
        coder = <Coder>(<tuple>event.owner)[1]
    return coder


cdef object codec_header(Event event):
    """The codec that the event itself names, or None; the last one counts."""
    found = None
    for name, value in event.headers:
        if value is not None and name == CODEC_NAME:
            found = value.decode("utf-8", "replace")
    return found


cdef tuple not_finite(object value):
    """The first number in a value that is not finite, and its path; None if there is none."""
    cdef object names, found
    cdef Py_ssize_t i = 0
    if type(value) is float:
        return None if isfinite(<double>value) else (value, "")
    if value is None or isinstance(value, (str, int)):
        return None
    if isinstance(value, dict):
        for name, part in value.items():
            found = not_finite(part)
            if found is not None:
                return found[0], f".{name}{found[1]}"
        return None
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            found = not_finite(part)
            if found is not None:
                return found[0], f"[{i}]{found[1]}"
            i += 1
        return None
    if isinstance(value, _Enum):
        return not_finite(value.value)
    kind = type(value)  # msgspec writes structs, dataclasses and classes of attrs
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if names is None:
        names = [field.name for field in getattr(kind, "__attrs_attrs__", ())]
    for name in names:
        found = not_finite(getattr(value, name, None))
        if found is not None:
            return found[0], f".{name}{found[1]}"
    return None


cdef str CODEC_NAME = PSK_CODEC_NAME.decode()
cdef str TAG_NAME = PSK_TAG_NAME.decode()
cdef uint32_t CODEC_NAME_BYTES = <uint32_t>len(CODEC_NAME)
cdef uint32_t TAG_NAME_BYTES = <uint32_t>len(TAG_NAME)


cdef object tags_of(Event event):
    cdef list tags = []
    if psk_get16(event.p + PSK_FRAME_HEADERS_LEN) == 0:
        return ()
    for name, value in event.headers:
        if value is not None and name == TAG_NAME:
            try:
                tags.append(value.decode())
            except UnicodeDecodeError as error:
                raise Corrupt(f"seq {event.seq}: a tag is not UTF-8: {error}", seq=event.seq) from None
    return tuple(tags)


def encode_tags(tags):
    """The headers that store ``tags``, as in a frame."""
    if isinstance(tags, (str, bytes, bytearray, memoryview)):
        raise WrongType(f"tags must be a list of str, got {type(tags).__name__}: write tags=[...]")
    out = []
    try:
        for tag in tags:
            if not isinstance(tag, str):
                raise WrongType(f"a tag must be str, got {type(tag).__name__}")
            if not tag:
                raise Usage("a tag must not be empty")
            out.append((TAG_NAME, tag.encode()))
    except UnicodeEncodeError as error:
        raise Usage(f"a tag must be text that UTF-8 can encode: {error}") from None
    except TypeError as error:
        if isinstance(error, WrongType):
            raise
        raise WrongType(f"tags must be a list of str, got {type(tags).__name__}") from None
    return pack_headers(out)


cdef bytes codec_mark(str name):
    """The header that names the codec of an event, as in a frame."""
    return pack_headers([(CODEC_NAME, name.encode())])
