"""Every NBD command, as libnbd sends it: libnbd_commands.py SOCKET [SOCKET_DISCARDS SOCKET_READ_ONLY].

Prints one line a check: "ok NAME" or "not ok NAME: WHY". The disks behind the sockets may be overwritten.
"""
import os
import signal
import sys

import nbd

LIMIT_S = 15
SOCKET, DISCARDS, READ_ONLY = sys.argv[1:4]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def connect(socket=SOCKET, structured=True, context=True, strict=True, extended=None):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    if context:
        h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    if not strict:
        h.set_strict_mode(0)
    h.connect_unix(socket)
    return h


def noise(length):
    return os.urandom(length)


def wants_error(errno_name, function):
    try:
        function()
    except nbd.Error as error:
        got = error.errno
        assert got == errno_name, f"error {got}, wanted {errno_name}"
        return
    raise AssertionError(f"succeeded, wanted {errno_name}")


@check
def both_reply_kinds_round_trip():
    data = noise(1 << 20)
    for structured in (True, False):
        h = connect(structured=structured, context=structured)
        assert h.get_structured_replies_negotiated() == structured
        h.pwrite(data, 65536)
        assert h.pread(len(data), 65536) == data
        h.shutdown()


@check
def what_is_advertised_is_true():
    h = connect()
    assert h.get_size() % 512 == 0 and h.get_size() > 0, h.get_size()
    for can in ("flush", "fua", "multi_conn", "zero", "df", "cache"):
        assert getattr(h, "can_" + can)(), f"{can} is not advertised"
    assert not h.is_read_only() and not h.can_trim()
    assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    smallest = h.get_block_size(nbd.SIZE_MINIMUM)
    preferred = h.get_block_size(nbd.SIZE_PREFERRED)
    largest = h.get_block_size(nbd.SIZE_MAXIMUM)
    assert smallest in (1, 512, 4096) and smallest <= preferred <= largest, (smallest, preferred, largest)
    assert largest >= 32 << 20, largest


@check
def single_bytes_and_odd_ranges():
    h = connect()
    base = noise(64 * 1024)
    h.pwrite(base, 0)
    want = bytearray(base)
    for offset, length in ((0, 1), (1, 1), (511, 2), (4095, 2), (4097, 4095), (12345, 33333), (65535, 1)):
        piece = noise(length)
        h.pwrite(piece, offset)
        want[offset:offset + length] = piece
        assert h.pread(length, offset) == piece, (offset, length)
    assert h.pread(len(want), 0) == want
    for offset in (1, 513, 4099):
        assert h.pread(1, offset) == want[offset:offset + 1]


@check
def fua_and_flush():
    h = connect()
    data = noise(4096)
    h.pwrite(data, 8192, nbd.CMD_FLAG_FUA)
    h.flush()
    assert connect().pread(4096, 8192) == data


@check
def zero_reads_back_as_zeros():
    h = connect()
    flags = [0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA]
    for flag in flags:
        for offset, length in ((0, 4096), (4096 + 7, 9001), (100, 1), (1 << 20, 3 << 20)):
            h.pwrite(noise(length + 20), offset)
            h.zero(length, offset + 10, flag)
            assert not any(h.pread(length, offset + 10)), (flag, offset)
            assert any(h.pread(10, offset)) and any(h.pread(10, offset + 10 + length)), (flag, offset)


@check
def fast_zero_is_answered_honestly():
    h = connect()
    if not h.can_fast_zero():
        return
    h.pwrite(noise(8192), 0)
    before = h.pread(8192, 0)
    try:
        h.zero(8192, 0, nbd.CMD_FLAG_FAST_ZERO)
        assert not any(h.pread(8192, 0))
    except nbd.Error as error:
        assert error.errno in ("EOPNOTSUPP", "ENOTSUP"), error.errno
        assert h.pread(8192, 0) == before


@check
def trim_is_refused_unless_allowed():
    h = connect(strict=False)
    data = noise(1 << 20)
    h.pwrite(data, 0)
    wants_error("EINVAL", lambda: h.trim(1 << 20, 0))
    assert h.pread(1 << 20, 0) == data
    h = connect(DISCARDS)
    assert h.can_trim()
    h.pwrite(data, 0)
    h.trim(1 << 20, 0)
    h.trim(5000, 333)
    h.flush()


@check
def cache_is_accepted():
    connect().cache(1 << 20, 0)


@check
def block_status_covers_the_range():
    h = connect()
    extents = []

    def collect(_context, offset, entries, _error):
        extents.append((offset, list(entries)))

    h.block_status(min(h.get_size(), 16 << 20), 0, collect)
    assert extents and sum(extents[0][1][0::2]) > 0, extents
    one = []
    h.block_status(1 << 20, 0, lambda c, o, e, err: one.append(list(e)), nbd.CMD_FLAG_REQ_ONE)
    assert len(one) == 1 and len(one[0]) == 2 and one[0][0] <= 1 << 20, one


@check
def dont_fragment_is_kept():
    h = connect()
    chunks = []
    size = 256 * 1024
    h.pread_structured(size, 0, lambda *chunk: chunks.append(len(chunk[0])), nbd.CMD_FLAG_DF)
    assert chunks == [size], chunks


@check
def the_end_of_the_disk():
    h = connect(strict=False)
    end = h.get_size()
    data = noise(512)
    h.pwrite(data, end - 512)
    assert h.pread(512, end - 512) == data
    wants_error("EINVAL", lambda: h.pread(512, end))
    wants_error("EINVAL", lambda: h.pread(1024, end - 512))
    wants_error("ENOSPC", lambda: h.pwrite(noise(1024), end - 512))
    wants_error("ENOSPC", lambda: h.pwrite(noise(512), (1 << 63) - 512))
    wants_error("ENOSPC", lambda: h.zero(1024, end - 512))
    assert h.pread(512, end - 512) == data, "the refused write left a trace"


@check
def unknown_flags_are_refused_in_sync():
    h = connect(strict=False)
    wants_error("EINVAL", lambda: h.pread(512, 0, 1 << 9))
    h.pread(512, 0)


@check
def read_only_refuses_writes_and_stays_in_sync():
    h = connect(READ_ONLY, strict=False)
    assert h.is_read_only()
    wants_error("EPERM", lambda: h.pwrite(noise(1 << 20), 0))
    wants_error("EPERM", lambda: h.zero(4096, 0))
    h.pread(4096, 0)


@check
def many_requests_in_flight():
    h = connect()
    size, depth = 65536, 64
    data = [noise(size) for _ in range(depth)]
    cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(d)), i * size) for i, d in enumerate(data)]
    wait_all(h, cookies)
    buffers = [nbd.Buffer(size) for _ in range(depth)]
    cookies = [h.aio_pread(b, i * size) for i, b in enumerate(buffers)]
    wait_all(h, cookies)
    for buffer, want in zip(buffers, data):
        assert bytes(buffer.to_bytearray()) == want


def wait_all(h, cookies):
    waiting = set(cookies)
    while waiting:
        h.poll(-1)
        waiting = {cookie for cookie in waiting if not h.aio_command_completed(cookie)}


@check
def two_connections_see_each_others_flushed_writes():
    a, b = connect(), connect()
    data = noise(4096)
    a.pwrite(data, 0)
    a.flush()
    assert b.pread(4096, 0) == data


@check
def two_clients_share_one_sector():
    """Neighbouring bytes of one sector, written at once by two clients: both must win."""
    a, b = connect(), connect()
    for round_ in range(200):
        x, y = bytes([round_]), bytes([255 - round_])
        waits = [(h, h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(v)), at))
                 for h, v, at in ((a, x, 1000), (b, y, 1001))]
        for h, cookie in waits:
            wait_all(h, [cookie])
        assert a.pread(2, 1000) == x + y, round_


@check
def list_and_opt_info():
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.connect_unix(SOCKET)
    names = []
    h.opt_list(lambda name, _description: names.append(name))
    assert len(names) >= 1, names
    h.set_export_name(names[0])
    h.opt_info()
    assert h.get_size() > 0
    h.set_export_name("no such export")
    wants_error("ENOENT", h.opt_info)
    h.set_export_name(names[0])
    h.opt_go()
    h.pread(512, 0)


def run(function):
    """Runs a check in a process of its own: a server that never answers must not take the others along."""
    name = function.__name__.replace("_", " ")
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            function()
            print(f"ok {name}", flush=True)
        except Exception as error:  # every fault of a check is its verdict
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"not ok {name}: {reason}", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        what = "no answer" if os.WTERMSIG(status) == signal.SIGALRM else f"signal {os.WTERMSIG(status)}"
        print(f"not ok {name}: {what} within {LIMIT_S} s", flush=True)


for function in CHECKS:
    run(function)
