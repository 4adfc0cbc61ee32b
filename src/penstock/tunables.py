"""Numbers that are not part of the format: distances, times and amounts of work.

A change here affects speed or memory, but no file. The compiled core gets these numbers like those
of ``layout.py``. This module imports nothing.
"""

ALLOCATE_STEP_MIN = 64 << 10
ALLOCATE_STEP_MAX = 16 << 20
ALLOCATE_AHEAD_BYTES = 8 << 20  # as far as pages are populated, but by a thread that needs the GIL
POPULATE_AHEAD_BYTES = 8 << 20
POPULATE_CHUNK_BYTES = 1 << 20
POPULATE_STEP_BYTES = 256 << 10
KEEP_MAPPED_BYTES = 1 << 20  # of written bytes before the head
LET_GO_BYTES = 8 << 20  # the others are unmapped in such steps: each one interrupts appends
WRITE_BYTES_MIN = 32 << 10  # appends of that much go through pwritev(2), not through the map
WRITE_RUN_BYTES = 256 << 10  # in runs of this size, which end at multiples of it
WRITE_SCRATCH_BYTES = (
    WRITE_RUN_BYTES + WRITE_BYTES_MIN
)  # a run, and the part of one frame beyond it
WRITE_TOGETHER_BYTES = 2 * WRITE_RUN_BYTES  # from this size on two threads share the work
WRITE_SPIN_NS = 100_000  # how long one of them polls for the other's end before it sleeps
AIDE_SPIN_NS = 200_000  # how long the second one polls for the next such append before it sleeps
SUM_LATER_BYTES_MAX = 8 << 10  # frames that are summed four at a time; longer ones while copied
GIL_COPY_BYTES_MAX = 32 << 10  # longer copies release the GIL
LOCK_SPINS = 200
TOKEN_TRIES = 64  # tokens that an opener tries if readers have locked their bytes
LOCK_SLICE_NS = 10_000_000
WAIT_SLICE_NS = 1_000_000_000
LOOK_NS = 100_000  # how often appends check whether the log was deleted
RING_STATE_REACH = 11  # sixteenths of a ring that may follow the newest copy of its state
RING_RESERVE_SHARE = 32  # a ring that does not drop keeps this part free for settings frames
RING_RESERVE_MIN = 512
RING_RESERVE_MAX = 2048
RING_WINDOW_BYTES = 64 << 10  # bytes that a reader of a ring copies at a time
RING_SCAN_BYTES = 256 << 10  # the same for a scan
SCAN_WINDOW_BYTES = 1 << 20  # bytes of a segment that verify and repair hold at a time
CRC_LONG_BYTES = 1024
CRC_SHORT_BYTES = 128
RING_INDEX_SHARE = 128  # by default, one slot of a ring's index for this many bytes of the file
CONSUMER_HEARTBEAT_NS = 1_000_000_000  # how often a consumer that waits says that it is alive

# Rows of one batch of a scan, unless the caller says otherwise.
BATCH_ROWS = 32_768
