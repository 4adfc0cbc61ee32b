# The sink that takes the frames of one append, one after the other.

cdef struct FrameSink:
    # Takes the frames of one append. Populated pages are written through the map. Other frames are
    # built in scratch and written with pwritev(2) in long runs, which avoids a page fault for every
    # page. The commit word that publishes them is always a store in the map.
    char *base
    int fd
    char *scratch         # NULL: everything through the map
    uint64_t warm_end     # offset up to which the map's pages are populated
    uint64_t run_at       # offset of the bytes in scratch
    uint64_t run          # bytes in scratch
    const char *unsummed[4]  # the bytes to sum of frames that still lack their checksums
    size_t unsummed_bytes[4]
    int unsummed_count


cdef inline void sink_sum(FrameSink *s) noexcept nogil:
    """Compute the missing checksums of frames."""
    cdef uint32_t crcs[4]
    cdef int i
    if s.unsummed_count == 4:
        for i in range(4):
            crcs[i] = 0xFFFFFFFF
        psk_crc_four(crcs, s.unsummed, s.unsummed_bytes)
        for i in range(4):
            psk_put32(<char *>s.unsummed[i] - PSK_FRAME_SEQ + PSK_FRAME_CRC, ~crcs[i])
    else:
        for i in range(s.unsummed_count):
            psk_put32(
                <char *>s.unsummed[i] - PSK_FRAME_SEQ + PSK_FRAME_CRC,
                ~psk_crc(0xFFFFFFFF, s.unsummed[i], s.unsummed_bytes[i]))
    s.unsummed_count = 0


cdef inline void sink_sum_later(FrameSink *s, char *dst, uint64_t body) noexcept nogil:
    """Compute the checksum of a filled frame together with three others."""
    s.unsummed[s.unsummed_count] = dst + PSK_FRAME_SEQ
    s.unsummed_bytes[s.unsummed_count] = PSK_FRAME_HEADER_BYTES - PSK_FRAME_SEQ + body
    s.unsummed_count += 1
    if s.unsummed_count == 4:
        sink_sum(s)


cdef inline void file_write(int fd, char *base, uint64_t at, const char *data, uint64_t nbytes) noexcept nogil:
    """Write bytes that belong at ``at``; through the map, if the kernel does not write them."""
    if not psk_write_all(fd, at, data, nbytes, NULL, 0, NULL, 0):
        memcpy(base + at, data, nbytes)


cdef void sink_write(FrameSink *s, uint64_t nbytes) noexcept nogil:
    """Write that many bytes of scratch to the file."""
    sink_sum(s)
    file_write(s.fd, s.base, s.run_at, s.scratch, nbytes)
    s.run -= nbytes
    s.run_at += nbytes
    memmove(s.scratch, s.scratch + nbytes, s.run)


cdef inline void sink_flush(FrameSink *s) noexcept nogil:
    """Write all of scratch, and sum the frames in the map."""
    if s.run:
        sink_write(s, s.run)
    elif s.unsummed_count:
        sink_sum(s)


cdef inline char *sink_room(FrameSink *s, uint64_t at, uint64_t total) noexcept nogil:
    """Where to build a frame that belongs at ``at``."""
    if s.scratch == NULL or at + total <= s.warm_end:
        if s.run:
            sink_write(s, s.run)
        return s.base + at
    if s.run == 0:
        s.run_at = at
    elif s.run >= PSK_WRITE_RUN_BYTES - s.run_at % PSK_WRITE_RUN_BYTES:
        # Runs end where large folios end: the kernel writes such runs a quarter faster.
        sink_write(s, PSK_WRITE_RUN_BYTES - s.run_at % PSK_WRITE_RUN_BYTES)
    if s.run + total > PSK_WRITE_SCRATCH_BYTES:
        sink_write(s, s.run)
        s.run_at = at
    s.run += total
    return s.scratch + s.run - total


cdef void sink_add(
    FrameSink *s, uint64_t at, const Parts *p, const char *value, uint64_t value_len, uint64_t prefix,
    uint64_t total, bint commit, uint64_t seq, uint64_t append_ns, uint32_t back, uint32_t left,
) noexcept nogil:
    """Write one frame, which belongs at ``at``; with its commit word if ``commit``."""
    cdef uint64_t body = prefix + value_len
    cdef char *dst
    if s.scratch != NULL and at + total > s.warm_end and total > PSK_WRITE_BYTES_MIN:
        sink_flush(s)
        if p.fixed:
            frame_write_big(
                s.base, at, s.scratch, s.fd, p, value, value_len, prefix, seq, append_ns, back, left)
            psk_fail(FP_BATCH_BODY if commit else FP_BODY)
            if commit:
                psk_store32(s.base + at, <uint32_t>body + 1)
            return
        if total > PSK_WRITE_SCRATCH_BYTES:
            dst = s.base + at
        else:
            dst = sink_room(s, at, total)
    else:
        dst = sink_room(s, at, total)
    psk_put32(dst, 0)
    if value_len > PSK_SUM_LATER_BYTES_MAX:
        frame_write(dst, p, value, value_len, prefix, seq, append_ns, back, left)
    else:
        frame_fill(dst, p, parts_shape(p), value, value_len, prefix, seq, append_ns, back, left)
        sink_sum_later(s, dst, body)
    psk_fail(FP_BATCH_BODY if commit else FP_BODY)
    if commit:
        psk_store32(dst, <uint32_t>body + 1)
