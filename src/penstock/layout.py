"""Every offset, size, magic and limit of the disk format and of control: the home of numbers.

The build turns this module into ``_layout.h`` for the compiled core, and a test checks both against
``docs/format.md``. Each offset is derived from the one before it. This module imports nothing and
does nothing; a change here is a change of format and bumps ``FORMAT_VERSION``.
"""

FORMAT_VERSION = 4
FORMAT_VERSION_OLDEST = 1  # that this version still reads
RING_VERSION = 2  # of the file of a ring
RING_VERSION_OLDEST = 1  # that this version still reads
CONTROL_VERSION = 5
BYTE_ORDER_MARK = 0x01020304
PAGE = 4096
ALIGN = 8

# Limits a caller can meet. Units last: bytes unless the name says otherwise.

TOPIC_BYTES_MAX = 1024
KEY_BYTES_MAX = 1024
HEADERS_BYTES_MAX = 65535
VALUE_BYTES_MAX = 256 << 20
SETTINGS_BYTES_MAX = 2048
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_BYTES_MAX = 2 << 30
SEGMENT_BYTES_DEFAULT = 64 << 20
SEGMENT_NUMBER_MAX = 0x7FFFFFFF
RING_BYTES_MIN = 32 << 10
RING_BYTES_MAX = 2 << 30
RING_SHARE = 2  # an append takes at most this part of a ring: one half
RING_INDEX_SHARE = 128  # by default, a slot of the index for so many bytes of the file
SEQ_MAX = (1 << 63) - 1
BATCH_EVENTS_MAX = 0xFFFFFFFF
PRODUCERS_MAX = 4096
PRODUCER_ID_BYTES_MAX = 1024
PRODUCERS_SHARE = 8  # the table takes at most this part of a segment: one eighth

# Frame
#
#    0        4        8                16               24       28       32   34   36   38 39
#   +--------+--------+----------------+----------------+--------+--------+----+----+----+--+--+
#   | commit |  crc   |      seq       |   append_ns    |  back  | batch  | key| hdr|topc|kd|fl|
#   +--------+--------+----------------+----------------+--------+--------+----+----+----+--+--+
#   | [event time 8] topic | headers | key | value | zeros to a multiple of 8                  |

FRAME_COMMIT = 0
FRAME_CRC = 4
FRAME_SEQ = 8
FRAME_APPEND_NS = 16
FRAME_BACK = 24
FRAME_BATCH_LEFT = 28
FRAME_KEY_LEN = 32
FRAME_HEADERS_LEN = 34
FRAME_TOPIC_LEN = 36
FRAME_KIND = 38
FRAME_FLAGS = 39
FRAME_HEADER_BYTES = 40

NO_KEY = 0xFFFF
NULL_HEADER = 0xFFFF
CODEC_NAME = b"penstock.codec"  # header: the codec of an event, if it is not the log's
TAG_NAME = b"penstock.tag"  # header, one for each tag

KIND_DATA = 1
KIND_DELETE = 2
KIND_PAD = 3
KIND_WRAP = 4
KIND_ROLL = 5
KIND_SETTINGS = 6
KIND_PRODUCER = 7
KIND_PRODUCERS = 8  # in a ring: the table of producers as it stood when the lap began
KIND_MAX = 8

PRODUCER_N = 0  # in the value of a producer frame, whose key is the producer's id
PRODUCER_COUNT = 8
PRODUCER_PREVIOUS = 12
PRODUCER_BYTES = 16

FLAG_EVENT_TIME = 1
FLAG_COMPRESSED = 2
FLAG_ENCRYPTED = 4
FLAGS_KNOWN = FLAG_EVENT_TIME

# Segment file: header page, two checkpoint pages (each with a copy of the header), index, frames;
# the last page is the footer once the segment is sealed.

SEGMENT_MAGIC = b"PENSTOCK"
HEADER_MAGIC = 0
HEADER_VERSION = 8
HEADER_BYTE_ORDER = 12
HEADER_UUID = 16
HEADER_BASE_SEQ = 32
HEADER_NUMBER = 40
HEADER_GENERATION = 44
HEADER_CREATED_NS = 48
HEADER_SEGMENT_BYTES = 56
HEADER_DATA_OFFSET = 64
HEADER_INDEX_OFFSET = 72
HEADER_INDEX_CAPACITY = 80
HEADER_INDEX_STEP = 84
HEADER_PRIOR_APPEND_NS = 88
HEADER_PRIOR_EVENT_MAX_NS = 96
HEADER_FLAGS = 104
HEADER_SETTINGS_LEN = 108
HEADER_PRODUCERS_OFFSET = 112
HEADER_PRODUCERS_BYTES = 120
HEADER_PRODUCERS_CRC = 124
HEADER_SETTINGS = 128
HEADER_CRC = PAGE - 4

HEADER_FLAG_MONOTONE = 1  # event times never went back in the log before this segment

SLOT_A_OFFSET = PAGE
SLOT_B_OFFSET = 2 * PAGE
SLOT_MAGIC = b"PSKCHECK"
SLOT_GENERATION = 8
SLOT_OFFSET = 16
SLOT_LAST_FRAME = 24
SLOT_LAST_SEQ = 32
SLOT_LAST_APPEND_NS = 40
SLOT_SETTINGS_OFFSET = 48
SLOT_INDEX_COUNT = 56
SLOT_EVENT_MAX_NS = 64
SLOT_FLAGS = 72
SLOT_PRODUCER_OFFSET = 80
SLOT_CRC = 508
SLOT_BYTES = 512

SLOT_FLAG_MONOTONE = 1

# Copies of the header: the rest of the page of each slot, in segments and in rings. A copy is the
# start of the header page, settings included, and a checksum of its own at the end of the page.

COPY_A_OFFSET = SLOT_A_OFFSET + SLOT_BYTES
COPY_B_OFFSET = SLOT_B_OFFSET + SLOT_BYTES
COPY_BYTES = PAGE - SLOT_BYTES
COPY_VERSION = 4  # of segments that have them from the start
RING_COPY_VERSION = 2  # of rings that do

INDEX_OFFSET = 3 * PAGE
INDEX_STEP = 4096
INDEX_ENTRY_OFFSET = 0
INDEX_ENTRY_TOPICS = 4
INDEX_ENTRY_SEQ = 8
INDEX_ENTRY_APPEND_NS = 16
INDEX_ENTRY_EVENT_MIN_NS = 24
INDEX_ENTRY_EVENT_MAX_NS = 32
INDEX_ENTRY_BYTES = 40

FOOTER_MAGIC = b"PSKSEALD"
FOOTER_VERSION = 8
FOOTER_FLAGS = 12
FOOTER_UUID = 16
FOOTER_BASE_SEQ = 32
FOOTER_NUMBER = 40
FOOTER_GENERATION = 44
FOOTER_DATA_END = 48
FOOTER_LAST_FRAME = 56
FOOTER_COUNT = 64
FOOTER_FIRST_SEQ = 72
FOOTER_LAST_SEQ = 80
FOOTER_NEXT_SEQ = 88
FOOTER_FIRST_APPEND_NS = 96
FOOTER_LAST_APPEND_NS = 104
FOOTER_EVENT_MIN_NS = 112
FOOTER_EVENT_MAX_NS = 120
FOOTER_LOG_EVENT_MAX_NS = 128
FOOTER_SEALED_NS = 136
FOOTER_INDEX_COUNT = 144
FOOTER_INDEX_CRC = 148
FOOTER_DATA_CRC = 152
FOOTER_TOPICS_COUNT = 156
FOOTER_TOPICS_LEN = 160
FOOTER_TOPICS = 168
FOOTER_CRC = PAGE - 4
TOPICS_BYTES_MAX = FOOTER_CRC - FOOTER_TOPICS

FOOTER_FLAG_MONOTONE = 1  # event times never go back within the segment
FOOTER_FLAG_TOPICS_COMPLETE = 2
FOOTER_FLAG_LOG_MONOTONE = 4  # ... nor from the log's first segment to the end of this one

# Ring file: header page, two checkpoint pages, control page, index, frames. The header page is laid
# out as a segment's, with HEADER_SEGMENT_BYTES the size of the file and HEADER_INDEX_STEP that of a
# slot of the index. Places are positions, which only grow: offset = data offset + position % room.

RING_MAGIC = b"PENSRING"
RING_CONTROL_OFFSET = 3 * PAGE
RING_INDEX_OFFSET = 4 * PAGE
RING_SLOT_BYTES = 8  # one position; that of seq s is in slot s % capacity

# A checkpoint of a ring has positions where one of a segment has offsets, and in the place of the
# index count the position of the oldest frame.

SLOT_TAIL = SLOT_INDEX_COUNT
SLOT_FLAG_CLEAN = 2  # nothing was written behind this checkpoint

# Control: one page of shared memory. Fields that different processes write at different moments
# stand on different cache lines (64 bytes).

CONTROL_MAGIC = b"PSKCNTRL"
CONTROL_KIND_FUTEX = 1
CONTROL_KIND_POLLING = 2
CONTROL_BYTES = PAGE

C_MAGIC = 0
C_VERSION = 8
C_KIND = 12
C_BOOT_ID = 16
C_UUID = 32
C_DEV = 48
C_INO = 56
C_CREATED_NS = 64
C_CRC = 72
C_EPOCH = 80  # of a ring: changes before anything that a reader without control relies on
C_LOCK_INO = 88  # inode of the file that writers lock; 0: they lock this one

C_LOCK = 128  # u32: token of the holder, top bit = somebody sleeps
C_NEXT_TOKEN = 132
C_SUSPECT = 136  # u32: the last holder died; repair before the next append

C_HEAD = 192  # number << 32 | offset: published end
C_RESERVED = 200  # likewise: end of what the holder may have touched
C_NEXT_SEQ = 208
C_LAST_APPEND_NS = 216
C_LAST_FRAME = 224
C_ALLOC_END = 232
C_BLOCK_OFFSET = 240
C_BLOCK_TOPICS = 244
C_EVENT_MAX_NS = 248

C_BLOCK_SEQ = 256
C_BLOCK_APPEND_NS = 264
C_BLOCK_EVENT_MIN_NS = 272
C_BLOCK_EVENT_MAX_NS = 280
C_INDEX_COUNT = 288
C_FLAGS = 296
C_ACTIVE_BASE = 304
C_SETTINGS_POS = 312
C_PRODUCER_POS = 320
C_TAIL = 328  # of a ring: position of the oldest frame; stored before that is overwritten
C_WHEN_FULL = 336  # of a ring: u32, what becomes of an append for which there is no room
C_GUARD = 344  # of a ring: between this position and the next one the tail may not come to stand
C_GUARD_END = 352
C_STATE_POS = 360  # of a ring: settings and producers are known by frames from here on; 0: none

C_NOTIFY = 384  # u32 futex word, counts wake-ups
C_WAITING = 388  # u32: a reader sleeps, or is about to

C_POISONED = 448
C_DURABLE_SEQ = 456
C_DURABLE_POS = 464  # number << 32 | offset: everything before it is on the device
C_DURABLE_BASE = 472  # base seq of the segment that C_DURABLE_POS stands in
C_SLOT = 480  # newest checkpoint: number << 32 | generation of the slot
C_SYNCING = 488  # u32: a sync is under way; left behind by one that died
C_SYNC_NOTIFY = 492  # u32 futex word, counts syncs that ended
C_SYNC_TURN = 496  # u32: token of the handle that syncs

C_REPAIRS = 512
C_TAKEOVERS = 520
C_ROLLS = 528
C_ALLOCATIONS = 536
C_SYNCS = 544
C_LOST = 552  # of a ring: bytes of damaged frames that the tail has passed

C_ROOM_NOTIFY = 576  # of a ring: u32 futex word, counts how often a reader made room
C_ROOM_WAITING = 580  # of a ring: u32: a writer waits for room, or is about to

C_HOLDS = 1024  # of a ring: positions of readers that are waited for; 0: free
HOLDS_MAX = 64
HOLD_BYTES = 8

CONTROL_FLAG_MONOTONE = 1  # event times never went back in the log up to head

EPOCH_MOVED = 1 << 63  # the ring has another file now

WHEN_FULL_DROP = 0
WHEN_FULL_BLOCK = 1
WHEN_FULL_ERROR = 2

LOCK_WAITERS = 0x80000000
TOKEN_MAX = 0x7FFFFFFF
TOKEN_BYTE = 1 << 32  # the OFD lock of token t is on byte TOKEN_BYTE + t of the file of locks
HOLD_BYTE = (1 << 31) + 4096  # the OFD lock of the reader in slot i of C_HOLDS is i bytes on

# Behaviour that is not format but wants one home all the same.

ALLOCATE_STEP_MIN = 64 << 10
ALLOCATE_STEP_MAX = 16 << 20
ALLOCATE_AHEAD_BYTES = 8 << 20  # as much as is populated, and by a thread that needs the GIL
POPULATE_AHEAD_BYTES = 8 << 20
POPULATE_CHUNK_BYTES = 1 << 20
POPULATE_STEP_BYTES = 256 << 10
KEEP_MAPPED_BYTES = 1 << 20  # behind the head, of what was written
LET_GO_BYTES = 8 << 20  # the others are unmapped by so many: each time interrupts who appends
WRITE_BYTES_MIN = 32 << 10  # appends of that much go through pwritev(2), not through the map
WRITE_RUN_BYTES = 256 << 10  # in runs of so many, which end at multiples of it
WRITE_SCRATCH_BYTES = WRITE_RUN_BYTES + WRITE_BYTES_MIN  # a run, and what one frame lies beyond it
WRITE_TOGETHER_BYTES = 2 * WRITE_RUN_BYTES  # from so many on two threads do it
WRITE_SPIN_NS = 100_000  # how long one of them looks for the other's end before it sleeps
AIDE_SPIN_NS = 200_000  # how long the second one looks for the next such append before it sleeps
SUM_LATER_BYTES_MAX = 8 << 10  # frames that are summed four at a time; longer ones while copied
GIL_COPY_BYTES_MAX = 32 << 10  # longer copies release the GIL
LOCK_SPINS = 200
TOKEN_TRIES = 64  # tokens that an opener tries if readers have locked their bytes
LOCK_SLICE_NS = 10_000_000
WAIT_SLICE_NS = 1_000_000_000
LOOK_NS = 100_000  # appends go on that long without a look whether the log was deleted
RING_STATE_REACH = 11  # sixteenths of a ring that may lie behind the newest copy of its state
RING_RESERVE_SHARE = 32  # a ring that does not drop keeps this part free for settings frames
RING_RESERVE_MIN = 512
RING_RESERVE_MAX = 2048
RING_WINDOW_BYTES = 64 << 10  # what a reader of a ring copies at a time
RING_SCAN_BYTES = 256 << 10  # likewise a scan
SCAN_WINDOW_BYTES = 1 << 20  # what verify and repair hold of a segment at a time
CRC_LONG_BYTES = 1024
CRC_SHORT_BYTES = 128
