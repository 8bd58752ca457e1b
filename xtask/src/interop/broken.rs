//! Broken and hostile NBD clients: after each of them the server still serves, and has released all
//! its resources.

use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::nbd::{IHAVEOPT, OPT_EXPORT_NAME, OPT_GO, READ, Range, Raw, WRITE, header};
use crate::process::until;
use crate::volume::{Maker, Recipe, noise};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Greatest memory of a server after unlocking, for any clients.
const RSS_MIB_MAX: f64 = 96.0;

/// Greatest number of connections at a time; more wait for accept (the budget of buffers, RFD 1).
const CLIENTS_MAX: usize = 64;

/// Time limit for the release of threads and descriptors of gone clients.
const SETTLE: Duration = Duration::from_secs(10);
/// Time after which a gone client is forgotten on an idle machine, with a large margin.
const MOMENT: Duration = Duration::from_millis(100);

/// Actions of a client before it leaves.
type Action = fn(&Path) -> Result<()>;

const ACTIONS: &[(&str, Action)] = &[
    ("noise instead of a handshake", |socket| greet_and_send(socket, &noise(1, 4096))),
    ("bad option magic", |socket| options_and_send(socket, &noise(2, 64))),
    ("unknown client flags", |socket| greet_and_send(socket, &[0xff; 4])),
    ("half a client flags word", |socket| greet_and_send(socket, &[0, 0])),
    ("an option of 2^32-1 bytes", |socket| options_and_send(socket, &option(OPT_GO, u32::MAX))),
    ("an export name of 4,097 bytes", |socket| {
        let mut message = option(OPT_EXPORT_NAME, 4097).to_vec();
        message.extend([b'a'; 4097]);
        options_and_send(socket, &message)
    }),
    ("GO whose name is longer than its option", |socket| {
        let mut message = option(OPT_GO, 6).to_vec();
        message.extend([0xff, 0xff, 0xff, 0xff, 0, 0]);
        options_and_send(socket, &message)
    }),
    ("half an option", |socket| options_and_send(socket, &option(OPT_GO, 100)[..9])),
    ("bad request magic", |socket| connect_and_send(socket, &noise(3, 28))),
    ("half a request", |socket| connect_and_send(socket, &header(READ, 1, FIRST)[..13])),
    ("a write of 2^32-1 bytes", |socket| {
        connect_and_send(socket, &header(WRITE, 1, Range { offset: 0, len: u32::MAX }))
    }),
    ("a read of 2^32-1 bytes", |socket| {
        connect_and_send(socket, &header(READ, 1, Range { offset: 0, len: u32::MAX }))
    }),
    ("gone in mid-write", |socket| {
        let mut message = header(WRITE, 1, Range { offset: 0, len: 1 << 20 }).to_vec();
        message.extend(noise(4, 300_000));
        let mut client = Raw::connect(socket)?;
        Ok(client.stream.write_all(&message)?)
    }),
    ("an offset of 2^64-1", |socket| {
        connect_and_send(socket, &header(READ, 1, Range { offset: u64::MAX, len: 4096 }))
    }),
];

const FIRST: Range = Range { offset: 0, len: 65536 };

pub(crate) fn run(cases: &mut Cases, lab: &Lab, disconnects: u32) {
    if !cases.wants_some("broken client") {
        return;
    }
    let recipe = Recipe { name: "broken", maker: Maker::Blockyard, options: "" };
    let server = recipe.make(lab).and_then(|volume| volume.serve(lab, &[]));
    let server = match server {
        Ok(server) => server,
        Err(error) => return cases.verdict("a server for the broken clients", Err(error)),
    };
    for (name, action) in ACTIONS {
        cases.run(&format!("broken client: {name}"), || {
            action(server.socket())?;
            good_client(&server).map(|()| String::new())
        });
    }
    cases.run("broken client: one byte at a time is served", || byte_by_byte(&server));
    cases.run("broken client: 63 that never read", || never_reading(&server));
    cases.run("broken client: 100 that never finish their handshake", || silent(&server));
    cases.run(&format!("broken client: {disconnects} leave with reads in flight"), || {
        leave(&server, disconnects)
    });
    cases.run("broken client: afterwards the server ends well", || {
        ensure!(!server.log().contains("panicked"), "a panic in the log: {}", server.log());
        server.stop().map(|()| String::new())
    });
}

fn option(option: u32, len: u32) -> [u8; 16] {
    let mut message = [0; 16];
    message[..8].copy_from_slice(&IHAVEOPT.to_be_bytes());
    message[8..12].copy_from_slice(&option.to_be_bytes());
    message[12..].copy_from_slice(&len.to_be_bytes());
    message
}

/// Sends, then reads until the server hangs up; leaves after a moment if the server waits for more.
fn send_and_leave(mut client: Raw, bytes: &[u8]) -> Result<()> {
    // The server may hang up before everything is sent.
    let _ = client.stream.write_all(bytes);
    client.stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let _ = client.hung_up();
    Ok(())
}

fn greet_and_send(socket: &Path, bytes: &[u8]) -> Result<()> {
    send_and_leave(Raw::greet(socket)?, bytes)
}

fn options_and_send(socket: &Path, bytes: &[u8]) -> Result<()> {
    send_and_leave(Raw::negotiate(socket)?, bytes)
}

fn connect_and_send(socket: &Path, bytes: &[u8]) -> Result<()> {
    send_and_leave(Raw::connect(socket)?, bytes)
}

/// Writes, flushes and reads back on a new connection.
pub(crate) fn good_client(server: &Server) -> Result<()> {
    let mut client = Raw::connect(server.socket()).context("a good client is not served")?;
    let data = noise(u64::from(std::process::id()), 100_000);
    client.write(3_000_000, &data)?;
    client.flush()?;
    ensure!(client.read(3_000_000, 100_000)? == data, "a good client reads other bytes");
    ensure!(client.read(client.len_bytes - 512, 512)?.len() == 512);
    Ok(())
}

fn byte_by_byte(server: &Server) -> Result<String> {
    let mut client = Raw::connect(server.socket())?;
    let mut message = header(WRITE, 5, Range { offset: 4096, len: 700 }).to_vec();
    message.extend(noise(9, 700));
    for byte in message {
        client.stream.write_all(&[byte])?;
    }
    ensure!(client.reply()? == (5, 0), "the write failed");
    ensure!(client.read(4096, 700)? == noise(9, 700), "other bytes");
    Ok(String::new())
}

/// Clients that ask for 32 MiB each and never read a byte of it: one less than the limit of
/// connections.
fn never_reading(server: &Server) -> Result<String> {
    let before = Footprint::of(server)?;
    let mut stuck = Vec::new();
    for _ in 0..CLIENTS_MAX - 1 {
        let mut client = Raw::connect(server.socket())?;
        for cookie in 0..32 {
            client.send(READ, cookie, Range { offset: 0, len: 1 << 20 }, &[])?;
        }
        stuck.push(client);
    }
    let mut peak: f64 = 0.0;
    for _ in 0..5 {
        good_client(server).context("while others do not read")?;
        peak = peak.max(server.process().rss_mib()?);
    }
    drop(stuck);
    ensure!(peak < RSS_MIB_MAX, "{peak:.0} MiB resident");
    before.regained(server)?;
    Ok(format!("{peak:.0} MiB resident at most"))
}

fn silent(server: &Server) -> Result<String> {
    let before = Footprint::of(server)?;
    let mut silent: Vec<_> =
        (0..100).map(|_| Raw::greet(server.socket())).collect::<Result<_>>()?;
    good_client(server).context("while 100 clients are silent")?;
    ensure!(silent[0].hung_up(), "the handshake has no time limit");
    drop(silent);
    before.regained(server)?;
    Ok(String::new())
}

/// Connects, asks for 8 x 64 KiB, and leaves before the first reply, repeatedly.
fn leave(server: &Server, count: u32) -> Result<String> {
    let before = Footprint::of(server)?;
    let start = Instant::now();
    let mut peak: f64 = 0.0;
    for round in 0..count {
        let mut client =
            Raw::connect(server.socket()).with_context(|| format!("client {round}"))?;
        let mut message = Vec::new();
        for cookie in 0..8_u64 {
            let offset = (u64::from(round) * 8 + cookie) * 65536 % (client.len_bytes - 65536);
            message.extend(header(READ, cookie, Range { offset, len: 65536 }));
        }
        client.stream.write_all(&message)?;
        if round % 3 == 0 {
            // Some leave in the middle of a reply.
            client.stream.read_exact(&mut [0; 1000])?;
        }
        drop(client);
        if round % 500 == 0 {
            peak = peak.max(server.process().rss_mib()?);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    good_client(server)?;
    before.regained(server)?;
    ensure!(peak < RSS_MIB_MAX, "{peak:.0} MiB resident");
    let rss = server.process().rss_mib()?;
    Ok(format!("{:.0} a second, {rss:.0} MiB resident afterwards", f64::from(count) / seconds))
}

/// Resources of a server: threads, and descriptors if readable.
pub(crate) struct Footprint {
    threads: usize,
    descriptors: Option<usize>,
}

impl Footprint {
    pub(crate) fn of(server: &Server) -> Result<Footprint> {
        let process = server.process();
        good_client(server)?;
        let mut seen = (0, 0);
        // Until two readings agree: the last client's thread may still be ending.
        until(SETTLE, || {
            let now = (process.threads().unwrap_or(0), process.descriptors().unwrap_or(0));
            std::mem::replace(&mut seen, now) == now && now.0 > 0
        });
        let descriptors = process.descriptors().ok();
        Ok(Footprint { threads: process.threads()?, descriptors })
    }

    pub(crate) fn regained(&self, server: &Server) -> Result<()> {
        let process = server.process();
        let back = until(SETTLE, || {
            // Ended threads are released at the latest when the next client comes, whose own thread
            // needs a moment to end.
            drop(Raw::greet(server.socket()));
            until(MOMENT, || {
                let descriptors = process.descriptors().ok();
                process.threads().is_ok_and(|threads| threads <= self.threads)
                    && (self.descriptors.is_none()
                        || descriptors.is_some_and(|now| Some(now) <= self.descriptors))
            })
        });
        ensure!(
            back,
            "not given back: {} threads instead of {}, {:?} descriptors instead of {:?}",
            process.threads()?,
            self.threads,
            process.descriptors().ok(),
            self.descriptors
        );
        Ok(())
    }
}
