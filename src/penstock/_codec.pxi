# Codecs and tags: how values become bytes and back, and the headers in which Penstock says so.

cdef object _codec_name = None
cdef object _find_codec = None


def set_codecs(name_of, find):
    """Called once by the codecs module, which lies above this one."""
    global _codec_name, _find_codec
    _codec_name = name_of
    _find_codec = find


ENCODED = object()  # as codec=: the values are what is to be written


cdef class Coder:
    """How one handle turns values into bytes and back: by its log's codec and its own schema.

    Every map of the handle refers to it, so that an event can be decoded when somebody asks, even
    after the log was closed. Nothing is looked up before that.
    """

    cdef public object name     # of the codec; None until somebody looked
    cdef public object schema
    cdef public object encode   # None for the codec that leaves bytes as they are
    cdef public object decode
    cdef bint found
    cdef dict others            # by name: for events that were appended with another codec

    def __init__(self, name=None, schema=None):
        self.name = name
        self.schema = schema

    cpdef find(self):
        """Look the codec up; `NoCodec` if this process does not have it, however often it asks."""
        if not self.found:
            self.encode, self.decode = _find_codec(self.name, self.schema)
            self.found = True

    cdef Coder other(self, object name):
        """The same schema with another codec."""
        cdef Coder coder = None
        if not isinstance(name, str):
            raise WrongType(f"codec is the name of one, not {type(name).__name__}")
        if self.others is None:
            self.others = {}
        coder = self.others.get(name)
        if coder is None:
            coder = Coder(name, self.schema if name != "bytes" else None)
            coder.find()
            self.others[name] = coder
        return coder

    cdef object to_bytes(self, object value, object path):
        """``value`` as it is appended: encoded, or, if it is a buffer, checked to be so already."""
        if value is None or self.encode is None:
            return value
        try:
            if PyObject_CheckBuffer(value):
                if not PyBytes_CheckExact(value):
                    value = bytes(value)  # what is checked is what is written
                self.decode(value)
            else:
                value = self.encode(value)
        except (PenstockError, MemoryError):
            raise
        except Exception as error:
            raise BadData(
                f"{path}: the value does not fit {self.described()}, nothing was written: {error}", path=path
            ) from error
        if not PyBytes_CheckExact(value):
            raise BadData(
                f"{path}: the codec {self.name!r} must encode to bytes, not {type(value).__name__}; "
                "nothing was written", path=path)
        return value

    cdef object encoded(self, object value, object path):
        """``value`` encoded; None if it is something else than an object for a codec that was found."""
        if self.encode is None or value is None or PyObject_CheckBuffer(value):
            return None
        return self.to_bytes(value, path)

    cdef str described(self):
        if self.schema is None:
            return f"the codec {self.name!r}"
        return f"the schema {getattr(self.schema, '__name__', self.schema)} in the codec {self.name!r}"


cdef object data_of(Event event):
    """The value of an event as an object."""
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
    """What decodes the event; None if its value is plain bytes."""
    cdef Coder coder = log_coder(event)
    if psk_get16(event.p + PSK_FRAME_HEADERS_LEN):
        name = codec_header(event)
        if name is not None and (coder is None or name != coder.name):
            return (Coder() if coder is None else coder).other(name)
    return coder


cdef Coder log_coder(Event event):
    """What decodes the events of its log; None if it came from elsewhere, as plain bytes."""
    cdef Coder coder = None
    cdef SegmentMap m
    if isinstance(event.owner, SegmentMap):
        m = <SegmentMap>event.owner
        if m.coder is None:
            m.coder = Coder()
        coder = m.coder
        if coder.name is None:
            coder.name = _codec_name(m.settings(), m.path)
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


cdef str CODEC_NAME = PSK_CODEC_NAME.decode()
cdef str TAG_NAME = PSK_TAG_NAME.decode()


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
    """The headers that keep ``tags``, as they stand in a frame."""
    if isinstance(tags, (str, bytes, bytearray, memoryview)):
        raise WrongType(f"tags are a list of str, not {type(tags).__name__}: write tags=[...]")
    out = []
    try:
        for tag in tags:
            if not isinstance(tag, str):
                raise WrongType(f"a tag is str, not {type(tag).__name__}")
            if not tag:
                raise Usage("a tag is not empty")
            out.append((TAG_NAME, tag.encode()))
    except UnicodeEncodeError as error:
        raise Usage(f"a tag cannot be written as UTF-8: {error}") from None
    except TypeError as error:
        if isinstance(error, WrongType):
            raise
        raise WrongType(f"tags are a list of str, not {type(tags).__name__}") from None
    return encode_headers(out)


cdef bytes marks_of(object codec, object tags):
    """What goes behind the caller's own headers: the codec, if it is not the log's, and tags."""
    marks = b"" if codec is None else encode_headers([(CODEC_NAME, codec.encode())])
    if tags is not None:
        marks += encode_tags(tags)
    return marks or None
