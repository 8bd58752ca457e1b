//! The device against a scripted server that records its requests.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::sq::{Owner, Token};
use blockyard_engine::time::Nanos;
use blockyard_protocol::nbd::Command;
use blockyard_protocol::nbd::client::Request;

use super::device::pause_after;
use super::{NbdDisk, Unflushed};
use crate::completions::CompletionQueue;
use crate::device_thread::{DeviceBio, DeviceThread};
use crate::durability::Durability;
use crate::memory::{Address, Memory};
use crate::poll;
use crate::submitter::new_io_context;

const LEN_BYTES: usize = 1 << 20;

// Protocol constants: transmission flags, commands, errors.
const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const CAN_MULTI_CONN: u16 = 1 << 8;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const OPT_GO: u32 = 7;

/// A received request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    connection: u32,
    command: u16,
    fua: bool,
    offset_bytes: u64,
    len_bytes: u32,
}

/// An error for commands of one type, or for all.
#[derive(Clone, Copy)]
struct Error {
    number: u32,
    command: Option<u16>,
}

/// Behaviour of the server.
// 13 fields: the faults that the server shows, and a record of its requests.
struct Script {
    flags: AtomicU16,
    len_bytes: AtomicU64,
    payload_max_bytes: u32,
    error: Error,
    /// Number of writes that it accepts without a reply before a disconnect.
    drops: AtomicU32,
    /// It closes the connection instead of replying to this command at this offset.
    closes_on: Option<(u16, u64)>,
    asked: Mutex<Vec<Asked>>,
    bytes: Mutex<Vec<u8>>,
    connections: AtomicU32,
    /// No handshake begins before this number of connections is made.
    opens_from: AtomicU32,
    made: (Mutex<()>, Condvar),
    /// Number of starts; connections of earlier starts are closed at their next request.
    starts: AtomicU32,
    open: AtomicU32,
}

impl Script {
    fn new(flags: u16) -> Self {
        Self {
            flags: AtomicU16::new(HAS_FLAGS | flags),
            len_bytes: AtomicU64::new(LEN_BYTES as u64),
            payload_max_bytes: 1 << 20,
            error: Error { number: 0, command: None },
            drops: AtomicU32::new(0),
            closes_on: None,
            asked: Mutex::default(),
            bytes: Mutex::new((0..LEN_BYTES).map(|at| (at / 512) as u8 | 1).collect()),
            connections: AtomicU32::new(0),
            opens_from: AtomicU32::new(0),
            made: Default::default(),
            starts: AtomicU32::new(0),
            open: AtomicU32::new(0),
        }
    }

    /// Command, FUA, first byte and length of each received request.
    fn asked(&self) -> Vec<(u16, bool, u64, u32)> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|one| (one.command, one.fua, one.offset_bytes, one.len_bytes)).collect()
    }

    /// Serves a connection until it ends.
    fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let ended = self.serve_open(stream);
        self.open.fetch_sub(1, Ordering::SeqCst);
        ended
    }

    fn serve_open(&self, mut stream: UnixStream) -> std::io::Result<()> {
        let start = self.starts.load(Ordering::SeqCst);
        let connection = self.connections.fetch_add(1, Ordering::SeqCst);
        self.wait_for_others();
        self.open(&mut stream)?;
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header)?;
            let word = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().unwrap());
            let cookie = word(8);
            let offset_bytes = word(16);
            let len_bytes = u32::from_be_bytes(header[24..].try_into().unwrap());
            let fua = header[5] & 1 != 0;
            let command = u16::from(header[7]);
            if command == DISCONNECT {
                return Ok(());
            }
            let one = Asked { connection, command, fua, offset_bytes, len_bytes };
            self.asked.lock().unwrap().push(one);
            let range = offset_bytes as usize..(offset_bytes + u64::from(len_bytes)) as usize;
            let mut payload = vec![0; if command == WRITE { range.len() } else { 0 }];
            stream.read_exact(&mut payload)?;
            let is_of_before = self.starts.load(Ordering::SeqCst) != start;
            if is_of_before || self.closes_on == Some((command, offset_bytes)) {
                return Ok(());
            }
            let drops = |left: u32| left.checked_sub(1);
            if command == WRITE
                && self.drops.fetch_update(Ordering::SeqCst, Ordering::SeqCst, drops).is_ok()
            {
                return Ok(());
            }
            let Error { number, command: of } = self.error;
            let error = if of.is_none_or(|of| of == command) { number } else { 0 };
            let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
            reply.extend(error.to_be_bytes());
            reply.extend(cookie.to_be_bytes());
            let mut bytes = self.bytes.lock().unwrap();
            match command {
                _ if error != 0 => {}
                READ => reply.extend(&bytes[range]),
                WRITE => bytes[range].copy_from_slice(&payload),
                WRITE_ZEROES => bytes[range].fill(0),
                _ => {}
            }
            drop(bytes);
            stream.write_all(&reply)?;
        }
    }

    /// Restarts: earlier connections are closed at their next request. New ones are opened only
    /// when there are as many as before.
    fn restart(&self) {
        let made = self.connections.load(Ordering::SeqCst);
        self.opens_from.store(2 * made, Ordering::SeqCst);
        self.starts.fetch_add(1, Ordering::SeqCst);
    }

    fn wait_for_others(&self) {
        let (lock, made) = &self.made;
        let load = |number: &AtomicU32| number.load(Ordering::SeqCst);
        let is_early = |(): &mut ()| load(&self.connections) < load(&self.opens_from);
        let guard = lock.lock().unwrap();
        made.notify_all();
        drop(made.wait_while(guard, is_early).unwrap());
    }

    /// The handshake: simple replies, GO, no other option.
    fn open(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        stream.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header)?;
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let len_bytes = u32::from_be_bytes(header[12..].try_into().unwrap());
            stream.read_exact(&mut vec![0; len_bytes as usize])?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                let len_bytes = data.len() as u32;
                [option, kind, len_bytes].iter().for_each(|word| reply.extend(word.to_be_bytes()));
                reply.extend(data);
                stream.write_all(&reply)
            };
            if option != OPT_GO {
                reply((1 << 31) + 1, &[])?;
                continue;
            }
            let mut export = vec![0, 0];
            export.extend(self.len_bytes.load(Ordering::SeqCst).to_be_bytes());
            export.extend(self.flags.load(Ordering::SeqCst).to_be_bytes());
            let mut sizes = vec![0, 3];
            [512, 4096, self.payload_max_bytes]
                .iter()
                .for_each(|size: &u32| sizes.extend(size.to_be_bytes()));
            reply(3, &export)?;
            reply(3, &sizes)?;
            return reply(1, &[]);
        }
    }
}

/// A device on the server, and a client of it.
struct Client {
    script: Arc<Script>,
    disk: DeviceThread,
    durability: Arc<Durability>,
    completions: Arc<CompletionQueue>,
    id: IoContext,
    uri: String,
    /// Data of reads and writes, from the first byte on.
    memory: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Client {
    fn new(script: Script) -> Self {
        Self::with_parameters(script, "")
    }

    fn with_parameters(script: Script, parameters: &str) -> Self {
        Self::with_count(script, parameters, &Arc::default())
    }

    /// A path with a shared count.
    fn with_count(script: Script, parameters: &str, unflushed: &Arc<Unflushed>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let script = Arc::new(script);
        let serving = Arc::clone(&script);
        std::thread::spawn(move || {
            // The thread ends with the test process.
            for stream in listener.incoming() {
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        let uri = format!("nbd+unix:///?socket={}{parameters}", path.display());
        let remote = Arc::new(NbdDisk::open(&uri, true).unwrap());
        let durability = Arc::<Durability>::default();
        let disk = remote.start(0, Arc::clone(&durability), Arc::clone(unflushed)).unwrap();
        let completions = CompletionQueue::new().unwrap();
        let id = new_io_context();
        disk.join(id, Arc::clone(&completions), Instant::now());
        let memory = vec![0; LEN_BYTES];
        Self { script, disk, durability, completions, id, uri, memory, _dir: dir }
    }

    fn op(&mut self, op: Op, sector: u64, len: u64) -> DeviceBio {
        let borrowed = Memory::Whole(Address(self.memory.as_mut_ptr()));
        let has_data = matches!(op, Op::Read | Op::Write);
        let bio = Bio::new(op, Sector(sector), Sector(len), BufRef::NONE, 0);
        DeviceBio {
            bio: Bio { origin: Origin { io_context: self.id, ..Origin::default() }, ..bio },
            memory: if has_data { borrowed } else { Memory::NONE },
            token: Token { owner: Owner::Shard, index: 0 },
            client: self.id,
            borrows: op == Op::Write,
            is_check: false,
            submitted: Nanos(0),
        }
    }

    /// Like `op`, with FUA.
    fn fua(&mut self, op: Op, sector: u64, len: u64) -> DeviceBio {
        let op = self.op(op, sector, len);
        DeviceBio { bio: Bio { fua: true, ..op.bio }, ..op }
    }

    /// Runs all operations at once; returns their statuses.
    fn run(&self, mut ops: Vec<DeviceBio>) -> Vec<BlkStatus> {
        let count = ops.len();
        let mut cqes = Vec::new();
        self.disk.send(&mut ops);
        while cqes.len() < count {
            poll::readable(&[Some(self.completions.ready())], None).unwrap();
            self.completions.take(&mut cqes, &mut Vec::new());
        }
        cqes.iter().map(|cqe| cqe.status).collect()
    }

    fn one(&mut self, op: Op, sector: u64, len: u64) -> BlkStatus {
        let op = self.op(op, sector, len);
        self.run(vec![op])[0]
    }

    /// Four reads at once; the connections that they came over.
    fn reads(&mut self) -> BTreeSet<u32> {
        let reads = [0, 8, 16, 24].map(|sector| self.op(Op::Read, sector, 8));
        self.script.asked.lock().unwrap().clear();
        assert_eq!(self.run(reads.to_vec()), [BlkStatus::Ok; 4]);
        let asked = self.script.asked.lock().unwrap();
        asked.iter().map(|one| one.connection).collect()
    }

    /// Reads until a test of the connections in use and the open ones holds.
    fn read_until(&mut self, holds: impl Fn(BTreeSet<u32>, u32) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds(self.reads(), self.script.open.load(Ordering::SeqCst)) {
            assert!(Instant::now() < deadline, "the connections do not change");
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.disk.leave(self.id);
    }
}

#[test]
fn write_that_is_to_be_stable_is_flushed_where_the_server_has_no_fua() {
    for (flags, asked) in [
        (SEND_FLUSH, vec![(WRITE, false, 4096, 512), (FLUSH, false, 0, 0)]),
        (SEND_FLUSH | SEND_FUA, vec![(WRITE, true, 4096, 512)]),
        // A server without flushes writes through.
        (0, vec![(WRITE, false, 4096, 512)]),
    ] {
        let mut client = Client::new(Script::new(flags));
        let op = client.fua(Op::Write, 8, 1);
        assert_eq!(client.run(vec![op]), [BlkStatus::Ok]);
        assert_eq!(client.script.asked(), asked);
    }
}

#[test]
fn write_whose_flush_fails_has_failed() {
    let error = Error { number: 5, command: Some(FLUSH) };
    let mut client = Client::new(Script { error, ..Script::new(SEND_FLUSH) });
    let op = client.fua(Op::Write, 0, 1);
    assert_eq!(client.run(vec![op]), [BlkStatus::Medium]);
    let loss = client.durability.loss().expect("the state of other writes is unknown");
    assert!(loss.problem.starts_with("a FUA write failed: "), "{loss}");
}

#[test]
fn flush_that_a_server_fails_is_kept_and_an_error_of_another_request_is_not() {
    for (number, status) in [(5, BlkStatus::Medium), (28, BlkStatus::NoSpace)] {
        let error = Error { number, command: None };
        let mut client = Client::new(Script { error, ..Script::new(SEND_FLUSH) });
        assert_eq!(client.one(Op::Read, 0, 8), status);
        assert_eq!(client.one(Op::Write, 0, 8), status);
        assert_eq!(client.durability.loss(), None);
        assert_eq!(client.one(Op::Flush, 0, 0), status);
        assert_eq!(client.durability.loss().unwrap().status, status);
    }
}

#[test]
fn zeros_are_written_where_the_server_has_no_write_zeroes() {
    let len = (100 << 10) / 512;
    let mut client = Client::new(Script::new(SEND_WRITE_ZEROES));
    assert_eq!(client.one(Op::WriteZeroes, 8, len), BlkStatus::Ok);
    assert_eq!(client.script.asked(), [(WRITE_ZEROES, false, 4096, 100 << 10)]);

    let mut client = Client::new(Script::new(0));
    assert_eq!(client.one(Op::WriteZeroes, 8, len), BlkStatus::Ok);
    let expected = [(WRITE, false, 4096, 64 << 10), (WRITE, false, (64 << 10) + 4096, 36 << 10)];
    assert_eq!(client.script.asked(), expected);
    let bytes = client.script.bytes.lock().unwrap();
    let end = 4096 + (100 << 10);
    assert!(bytes[4096..end].iter().all(|byte| *byte == 0));
    assert!(bytes[4095] != 0 && bytes[end] != 0, "and no more");
}

#[test]
fn discard_is_a_hint_that_a_server_need_not_take() {
    for (flags, asked) in [(0, vec![]), (SEND_TRIM, vec![(TRIM, false, 0, 4096)])] {
        let mut client = Client::new(Script::new(flags));
        assert_eq!(client.one(Op::Discard, 0, 8), BlkStatus::Ok);
        assert_eq!(client.script.asked(), asked);
    }
}

#[test]
fn long_operations_are_cut_to_what_the_server_takes() {
    let script = Script { payload_max_bytes: 8192, ..Script::new(0) };
    let mut client = Client::new(script);
    let data: Vec<u8> = (0..20 << 10).map(|at| (at / 100) as u8).collect();
    client.memory[..data.len()].copy_from_slice(&data);
    assert_eq!(client.one(Op::Write, 8, 40), BlkStatus::Ok);
    let pieces = [(4096, 8192), (12288, 8192), (20480, 4096)];
    assert_eq!(client.script.asked(), pieces.map(|(at, len)| (WRITE, false, at, len)));
    assert!(client.script.bytes.lock().unwrap()[4096..][..data.len()] == data);
    client.memory.fill(0);
    assert_eq!(client.one(Op::Read, 8, 40), BlkStatus::Ok);
    assert!(client.memory[..data.len()] == data);
    assert!(client.memory[data.len()..].iter().all(|byte| *byte == 0), "and no more");
}

#[test]
fn errors_say_whose_they_are() {
    let cases = [
        (5, BlkStatus::Medium),
        (1, BlkStatus::Medium),
        (12, BlkStatus::IoError),
        (22, BlkStatus::Invalid),
        (75, BlkStatus::Invalid),
        (28, BlkStatus::NoSpace),
        (95, BlkStatus::NotSupported),
        (0, BlkStatus::Ok),
    ];
    for (number, status) in cases {
        let error = Error { number, command: None };
        let mut client = Client::new(Script { error, ..Script::new(SEND_FLUSH) });
        for (op, len) in [(Op::Read, 8), (Op::Write, 8), (Op::Flush, 0)] {
            assert_eq!(client.one(op, 0, len), status, "{op:?}, error {number}");
        }
    }
}

#[test]
fn write_that_was_lost_with_its_connection_is_sent_again_on_the_next() {
    let script = Script { drops: AtomicU32::new(2), ..Script::new(0) };
    let mut client = Client::new(script);
    client.memory[..4096].fill(7);
    assert_eq!(client.one(Op::Write, 8, 8), BlkStatus::Ok);
    assert_eq!(client.script.asked(), [(WRITE, false, 4096, 4096); 3]);
    assert_eq!(client.script.connections.load(Ordering::SeqCst), 3);
    assert!(client.script.bytes.lock().unwrap()[4096..8192].iter().all(|byte| *byte == 7));
}

#[test]
fn request_that_the_server_closes_on_fails_after_three_connections_and_others_go_on() {
    let flags = SEND_FLUSH | SEND_TRIM | SEND_WRITE_ZEROES;
    for (command, op, len) in [
        (READ, Op::Read, 8),
        (WRITE, Op::Write, 8),
        (FLUSH, Op::Flush, 0),
        (TRIM, Op::Discard, 8),
        (WRITE_ZEROES, Op::WriteZeroes, 8),
    ] {
        let script = Script { closes_on: Some((command, 0)), ..Script::new(flags) };
        let mut client = Client::new(script);
        // Other operations are in flight on the lost connections.
        let mut ops: Vec<_> = (1..9).map(|nth| client.op(Op::Read, 8 * nth, 8)).collect();
        let bad = client.op(op, 0, len);
        ops.insert(4, DeviceBio { token: Token { index: 1, ..bad.token }, ..bad });
        let mut cqes = Vec::new();
        client.disk.send(&mut ops);
        while cqes.len() < 9 {
            poll::readable(&[Some(client.completions.ready())], None).unwrap();
            client.completions.take(&mut cqes, &mut Vec::new());
        }
        for cqe in cqes {
            let is_bad = cqe.token.index == 1;
            let expected = if is_bad { BlkStatus::IoError } else { BlkStatus::Ok };
            assert_eq!(cqe.status, expected, "{op:?}");
        }
        let asked = client.script.asked();
        assert_eq!(asked.iter().filter(|one| (one.0, one.2) == (command, 0)).count(), 3, "{op:?}");
        assert_eq!(client.one(Op::Read, 8, 8), BlkStatus::Ok);
    }
}

#[test]
fn server_that_ends_with_all_its_connections_costs_a_request_one_try() {
    let mut client = Client::with_parameters(Script::new(CAN_MULTI_CONN), "&connections=3");
    client.read_until(|used, _| used.len() == 3);
    client.script.asked.lock().unwrap().clear();
    client.script.restart();
    assert_eq!(client.one(Op::Write, 8, 8), BlkStatus::Ok);
    assert_eq!(client.script.asked(), [(WRITE, false, 4096, 4096); 4]);
}

#[test]
fn request_that_the_server_refuses_because_it_shuts_down_fails_after_three_connections() {
    let error = Error { number: 108, command: Some(READ) };
    let mut client = Client::new(Script { error, ..Script::new(SEND_FLUSH) });
    assert_eq!(client.one(Op::Read, 0, 8), BlkStatus::IoError);
    assert_eq!(client.script.asked(), [(READ, false, 0, 4096); 3]);
    assert_eq!(client.one(Op::Write, 0, 8), BlkStatus::Ok);
}

#[test]
fn pauses_grow_until_a_request_was_answered() {
    let ms = Duration::from_millis;
    let mut pauses = vec![ms(20)];
    while pauses.len() < 10 {
        pauses.push(pause_after(*pauses.last().unwrap(), false));
    }
    let expected = [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000].map(ms);
    assert_eq!(pauses, expected);
    assert_eq!(pause_after(ms(2000), true), ms(20));
}

#[test]
fn end_of_the_server_does_not_wait_for_one_that_is_away() {
    let script = Script { closes_on: Some((READ, 0)), ..Script::new(0) };
    let mut client = Client::with_parameters(script, "&reconnect-delay=86400");
    std::fs::remove_file(client._dir.path().join("s")).unwrap();
    let mut ops = vec![client.op(Op::Read, 0, 8)];
    client.disk.send(&mut ops);
    client.disk.end_waiting();
    let mut cqes = Vec::new();
    while cqes.is_empty() {
        poll::readable(&[Some(client.completions.ready())], None).unwrap();
        client.completions.take(&mut cqes, &mut Vec::new());
    }
    assert_eq!(cqes[0].status, BlkStatus::Transport);
}

#[test]
fn several_connections_are_used_if_the_server_allows_them() {
    let script = Script::new(CAN_MULTI_CONN);
    let mut client = Client::with_parameters(script, "&connections=3");
    // Further connections are made while the first one is in use.
    client.read_until(|used, _| used.len() == 3);
    let script = Script::new(0);
    let mut client = Client::with_parameters(script, "&connections=3");
    for _ in 0..50 {
        client.reads();
    }
    assert_eq!(client.script.connections.load(Ordering::SeqCst), 1);
}

/// A server that closes the connection on a read at offset 0, so that a test can lose it.
fn losable(flags: u16) -> Script {
    Script { closes_on: Some((READ, 0)), ..Script::new(flags) }
}

#[test]
fn server_that_is_lost_with_unflushed_writes_has_lost_them() {
    let lost = |flags, parameters: &str, ops: &[(Op, bool)]| {
        let mut client = Client::with_parameters(losable(flags), parameters);
        for (op, fua) in ops {
            let len = if *op == Op::Flush { 0 } else { 8 };
            let op = if *fua { client.fua(*op, 8, len) } else { client.op(*op, 8, len) };
            assert_eq!(client.run(vec![op]), [BlkStatus::Ok]);
        }
        assert_eq!(client.one(Op::Read, 0, 8), BlkStatus::IoError);
        client.durability.loss().map(|loss| (loss.problem, loss.status))
    };
    let with = |len_bytes: u64| {
        let end = "acknowledged unflushed bytes; it may have lost them";
        Some((format!("the server was lost with {len_bytes} {end}"), BlkStatus::IoError))
    };
    let write = (Op::Write, false);
    let flush = (Op::Flush, false);
    let zeroes = (Op::WriteZeroes, false);
    let fua = (Op::Write, true);
    let flags = SEND_FLUSH | SEND_FUA | SEND_WRITE_ZEROES;
    assert_eq!(lost(flags, "", &[write, zeroes]), with(8192));
    assert_eq!(lost(flags, "&unflushed=fail", &[write, flush, write]), with(4096));
    assert_eq!(lost(flags, "", &[write, flush]), None, "the flush covers the write");
    assert_eq!(lost(flags, "", &[fua]), None, "a FUA write is stable");
    assert_eq!(lost(SEND_FLUSH, "", &[fua]), None, "a flush follows the write");
    assert_eq!(lost(0, "", &[write]), None, "a server without flushes writes through");
    assert_eq!(lost(flags, "&unflushed=trust", &[write]), None, "the user trusts the server");
}

#[test]
fn flush_covers_what_was_acknowledged_when_it_was_sent() {
    let unflushed = Unflushed::default();
    let mut client = Client::new(Script::new(SEND_FLUSH));
    assert_eq!(client.one(Op::Read, 8, 8), BlkStatus::Ok);
    let remote = super::dial::dial(&super::uri::Uri::parse(&client.uri).unwrap()).unwrap();
    let sent = |request: &Request| unflushed.sent(request, remote.remote());
    let write = Request::new(Command::Write, 0..512);
    let other = Request::new(Command::Write, 0..8);
    unflushed.succeeded(sent(&write));
    let flush = sent(&Request::FLUSH);
    let late = sent(&other);
    assert_eq!(unflushed.bytes(), 512);
    unflushed.succeeded(late);
    unflushed.succeeded(flush);
    assert_eq!(unflushed.bytes(), 8, "acknowledged after the flush");
}

#[test]
fn flush_of_one_path_covers_the_writes_of_all() {
    for is_flushed in [true, false] {
        let unflushed = Arc::default();
        let mut one = Client::with_count(losable(SEND_FLUSH), "", &unflushed);
        let mut other = Client::with_count(losable(SEND_FLUSH), "", &unflushed);
        assert_eq!(one.one(Op::Write, 8, 8), BlkStatus::Ok);
        if is_flushed {
            assert_eq!(other.one(Op::Flush, 0, 0), BlkStatus::Ok);
        }
        assert_eq!(one.one(Op::Read, 0, 8), BlkStatus::IoError);
        assert_eq!(one.durability.loss().is_none(), is_flushed);
    }
}

#[test]
fn export_that_comes_back_as_another_one_has_lost_what_it_had() {
    let both = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    for (flags, len_bytes, difference) in [
        (both, LEN_BYTES as u64, None),
        (both | CAN_MULTI_CONN, LEN_BYTES as u64, None),
        (HAS_FLAGS | SEND_FLUSH, LEN_BYTES as u64, Some("FUA was offered, and is not any more")),
        (both | SEND_TRIM, LEN_BYTES as u64, Some("TRIM was not offered, and is now")),
        (both, 2 << 20, Some("it had 1048576 bytes, and has 2097152")),
    ] {
        // Even if the user trusts a killed server's writes.
        let script = losable(SEND_FLUSH | SEND_FUA);
        let mut client = Client::with_parameters(script, "&unflushed=trust");
        assert_eq!(client.one(Op::Write, 8, 8), BlkStatus::Ok);
        assert_eq!(client.one(Op::Flush, 0, 0), BlkStatus::Ok);
        client.script.flags.store(flags, Ordering::SeqCst);
        client.script.len_bytes.store(len_bytes, Ordering::SeqCst);
        assert_eq!(client.one(Op::Read, 0, 8), BlkStatus::IoError);
        let problem = client.durability.loss().map(|loss| loss.problem);
        let expected = difference.map(|what| format!("another export has come back: {what}"));
        assert_eq!(problem, expected);
    }
}

#[test]
fn header_that_was_written_to_a_lost_server_is_not_taken_for_stable() {
    for (parameters, is_ok) in [("", false), ("&unflushed=trust", true)] {
        let client = Client::with_parameters(Script::new(SEND_FLUSH), parameters);
        let remote = NbdDisk::open(&client.uri, true).unwrap();
        remote.write_at(0, &[7; 512]).unwrap();
        client.script.starts.fetch_add(1, Ordering::SeqCst);
        for _ in 0..2 {
            let flushed = remote.flush().map_err(|error| error.to_string());
            assert_eq!(flushed.is_ok(), is_ok, "{flushed:?}");
        }
    }
}

#[test]
fn server_that_allows_one_connection_after_its_restart_gets_one() {
    let script = Script::new(SEND_FLUSH | CAN_MULTI_CONN);
    let mut client = Client::with_parameters(script, "&connections=3");
    client.read_until(|used, _| used.len() == 3);
    client.script.flags.store(HAS_FLAGS | SEND_FLUSH, Ordering::SeqCst);
    client.script.restart();
    // All three are lost and dialled again together; then two are closed.
    client.reads();
    client.read_until(|_, open| open == 1);
    for _ in 0..50 {
        assert_eq!(client.reads().len(), 1);
    }
    assert_eq!(client.script.connections.load(Ordering::SeqCst), 6);
}

#[test]
fn write_and_its_flush_that_are_sent_again_hold_up_no_other() {
    let script = Script { drops: AtomicU32::new(1), ..Script::new(SEND_FLUSH) };
    let mut client = Client::new(script);
    // All writes are lost with the first connection, and wait for each other on the next.
    let mut write = |nth: u64| client.fua(Op::Write, 8 * nth, 8);
    let writes = (0..4).map(&mut write).collect();
    assert_eq!(client.run(writes), [BlkStatus::Ok; 4]);
    let asked = client.script.asked();
    assert!(asked.iter().filter(|one| one.0 == FLUSH).count() >= 4, "{asked:?}");
}
