//! A server that only moves bytes: one thread per connection answers every READ with data in the
//! cache. Every server has its costs (sockets, copies into them, wake-ups); `cargo x bench scale`
//! compares ours with it.
//!
//! The protocol is old-style NBD, which has almost no handshake.

use std::io::{ErrorKind, IoSlice, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};

const SIZE_BYTES: u64 = 8 << 20;
const DATA_BYTES: usize = 4096;
const REQUEST_BYTES: usize = 28;
const STACK_BYTES: usize = 256 << 10;
/// Replies per system call.
const REPLIES_MAX: usize = 16;
const DISCONNECT: u16 = 2;
static DATA: [u8; DATA_BYTES] = [0x5a; DATA_BYTES];

/// `NBDMAGIC`, the old style's number, the size, flags, 124 zeros.
fn greeting() -> Vec<u8> {
    let mut bytes = b"NBDMAGIC".to_vec();
    bytes.extend(0x0000_4202_8186_1253_u64.to_be_bytes());
    bytes.extend(SIZE_BYTES.to_be_bytes());
    bytes.extend(1_u32.to_be_bytes());
    bytes.resize(152, 0);
    bytes
}

fn reply(request: &[u8]) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&0x6744_6698_u32.to_be_bytes());
    header[8..].copy_from_slice(&request[8..16]);
    header
}

/// Serves until the client leaves.
fn serve(mut socket: UnixStream) -> Result<()> {
    socket.write_all(&greeting())?;
    let mut inbox = vec![0; 64 << 10];
    let mut len = 0;
    loop {
        match socket.read(&mut inbox[len..])? {
            0 => return Ok(()),
            received => len += received,
        }
        let whole = len / REQUEST_BYTES * REQUEST_BYTES;
        let requests: Vec<&[u8]> = inbox[..whole].chunks_exact(REQUEST_BYTES).collect();
        for some in requests.chunks(REPLIES_MAX) {
            if some.iter().any(|request| request[6..8] == DISCONNECT.to_be_bytes()) {
                return Ok(());
            }
            let headers: Vec<[u8; 16]> = some.iter().map(|request| reply(request)).collect();
            let both = |header| [IoSlice::new(header), IoSlice::new(&DATA)];
            let slices: Vec<IoSlice> = headers.iter().flat_map(|header| both(header)).collect();
            if socket.write_vectored(&slices)? < some.len() * (16 + DATA_BYTES) {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        inbox.copy_within(whole..len, 0);
        len -= whole;
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).expect("the path of a socket");
    let listener = UnixListener::bind(path)?;
    loop {
        let (socket, _) = listener.accept()?;
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn(|| serve(socket))?;
    }
}
