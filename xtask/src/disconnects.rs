//! `cargo x disconnects`: clients that leave at every byte of a session, with unread replies, on
//! Unix sockets and TCP, where some reset the connection.
//!
//! An acknowledged write of a client that left is there. The server serves others meanwhile, and
//! has given back all threads and descriptors in the end.

use crate::cases::Cases;
use crate::interop::broken::{Footprint, good_client};
use crate::lab::{Door, Lab, Server};
use crate::nbd::{
    FLAG_FUA, FLUSH, IHAVEOPT, OPT_EXPORT_NAME, OPT_GO, READ, Range, Raw, TRIM, WRITE,
    WRITE_ZEROES, header,
};
use crate::random::Random;
use crate::totals::Totals;
use crate::volume::{Maker, Recipe, noise};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Options that a client may send before it selects an export, and one that does not exist.
const OPTIONS: [u32; 5] = [3, 6, 8, 10, 0x1234];
/// Place of the writes that are in flight when their client leaves.
const WILD_AT: u64 = 4 << 20;
/// Place of the acknowledged writes.
const KEPT_AT: u64 = 1 << 20;
/// Sessions between two looks at the server.
const ROUND: u64 = 50;

/// Number of clients.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of clients on each kind of socket.
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// As many as fit into this time.
    #[arg(long, conflicts_with = "count")]
    seconds: Option<u64>,
    /// Seed of the first client; the next one has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let lab = Lab::new()?;
    let recipe = Recipe { name: "leaving", maker: Maker::Blockyard, options: "" };
    let volume = recipe.make(&lab)?;
    let mut cases = Cases::new(None);
    let time = args.seconds.map(|seconds| Duration::from_secs(seconds) / 2);
    let count = if time.is_some() { u64::from(u32::MAX) } else { args.count };
    let seeds = args.seed..args.seed.saturating_add(count);
    totals.raise("first_seed", args.seed);
    for is_tcp in [false, true] {
        let name = if is_tcp { "clients that leave, TCP" } else { "clients that leave, Unix" };
        cases.run(name, || {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let address = format!("127.0.0.1:{port}");
            let words = if is_tcp { vec!["--listen", address.as_str()] } else { Vec::new() };
            let server = volume.serve(&lab, &words)?;
            let door = if is_tcp { Door::Tcp(port) } else { Door::Unix(server.socket().into()) };
            let before = Footprint::of(&server)?;
            let start = Instant::now();
            let mut left = 0;
            for seed in seeds.clone() {
                if time.is_some_and(|time| start.elapsed() >= time) {
                    break;
                }
                session(&server, &door, seed).with_context(|| {
                    format!("again: cargo x disconnects --count {ROUND} --seed {seed}")
                })?;
                left += 1;
            }
            before.regained(&server)?;
            ensure!(!server.log().contains("a defect in blockyard"), "{}", server.log());
            server.stop()?;
            totals.add("disconnects", left);
            totals.raise("last_seed", args.seed + left);
            Ok(format!("{left} left"))
        });
    }
    cases.finish("disconnects")
}

fn session(server: &Server, door: &Door, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    if seed.is_multiple_of(ROUND) {
        good_client(server)?;
    }
    if random.below(5) == 0 {
        return kept(server, &mut random, seed);
    }
    let script = script(&mut random);
    // Each part of the session is as likely, however long it is.
    let part = random.below(script.len() as u64) as usize;
    let mut bytes: Vec<u8> = script[..part].concat();
    let last = &script[part];
    bytes.extend(&last[..random.below(last.len() as u64 + 1) as usize]);
    match door {
        Door::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            leave(&stream, &bytes, &mut random);
            if random.below(2) == 0 {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        }
        Door::Tcp(port) => {
            let stream = TcpStream::connect(("127.0.0.1", *port))?;
            leave(&stream, &bytes, &mut random);
            if random.below(2) == 0 {
                rustix::net::sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO))?;
            }
        }
    }
    Ok(())
}

/// Sends the bytes, and reads a few or none. The server may hang up at any time.
fn leave<S>(stream: &S, bytes: &[u8], random: &mut Random)
where
    for<'a> &'a S: Read + Write,
{
    let mut stream = stream;
    let _ = stream.write_all(bytes);
    if random.below(2) == 0 {
        // The greeting has 18 bytes, so this read ends.
        let _ = stream.read(&mut vec![0; 1 + random.below(1000) as usize]);
    }
}

/// The messages of a client that does not wait for replies.
fn script(random: &mut Random) -> Vec<Vec<u8>> {
    let mut parts = vec![3_u32.to_be_bytes().to_vec()];
    for _ in 0..random.below(3) {
        let option = OPTIONS[random.below(5) as usize];
        parts.push(message(option, &noise(1, random.below(40) as usize)));
    }
    if random.below(2) == 0 {
        parts.push(message(OPT_EXPORT_NAME, &[]));
    } else {
        parts.push(message(OPT_GO, &[0; 6]));
    }
    for cookie in 0..1 + random.below(12) {
        let offset = WILD_AT + random.below(1 << 20);
        let len = 1 + random.below(100_000) as u32;
        let at = Range { offset, len };
        let commands = [READ, READ, WRITE, WRITE, FLUSH, TRIM, WRITE_ZEROES, 2, 99];
        let command = commands[random.below(9) as usize];
        let at = if command == FLUSH { Range { offset: 0, len: 0 } } else { at };
        let mut request = header(command, cookie, at);
        if command == WRITE && random.below(2) == 0 {
            request[4..6].copy_from_slice(&FLAG_FUA.to_be_bytes());
        }
        parts.push(request.to_vec());
        if command == WRITE {
            parts.push(noise(cookie, len as usize));
        }
    }
    parts
}

fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let mut message = IHAVEOPT.to_be_bytes().to_vec();
    message.extend(option.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    message
}

/// A client leaves behind the reply to its write, within its next request.
fn kept(server: &Server, random: &mut Random, seed: u64) -> Result<()> {
    let bytes = noise(seed, 1 + random.below(50_000) as usize);
    let offset = KEPT_AT + random.below(1 << 20);
    let mut client = Raw::connect(server.socket())?;
    client.write(offset, &bytes)?;
    let next = header(WRITE, 1, Range { offset: WILD_AT, len: 4096 });
    client.stream.write_all(&next[..random.below(28) as usize])?;
    drop(client);
    let got = Raw::connect(server.socket())?.read(offset, u32::try_from(bytes.len())?)?;
    ensure!(got == bytes, "an acknowledged write of {} bytes at {offset} is lost", bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_flags_options_an_export_and_requests() {
        for seed in 0..100 {
            let parts = script(&mut Random::new(seed));
            assert_eq!(parts[0], [0, 0, 0, 3]);
            let options = parts.iter().filter(|part| part.starts_with(b"IHAVEOPT")).count();
            assert!((1..=3).contains(&options) && parts.len() > options + 1, "seed {seed}");
        }
    }
}
