//! `cargo x bench scale`: the server's cost per request and memory per connection, with growing
//! numbers of connections, exports and volumes. Both should stay flat.
//!
//! The clients of one row share the same CPUs, so throughput says little; CPU time per request and
//! memory are the server's own. Opening lasts from the start of the server to its socket, with a
//! very cheap key derivation.
//!
//! Sockets of many connections, and their pages, no longer fit the cache, which makes requests more
//! expensive for every server. A server that only moves bytes shows by how much.

use super::fio::{Job, Run, warm};
use super::machine;
use super::table::middle;
use crate::lab::{self, Lab};
use crate::process::{Watched, until};
use crate::tools;
use crate::volume::sparse;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CONNECTIONS: [u32; 5] = [1, 4, 16, 64, 256];
const EXPORTS: [u32; 4] = [1, 4, 16, 64];
const SIZES_GIB: [u64; 4] = [1, 64, 1024, 16 << 10];
/// Size of the data, in memory.
const SIZE_MIB: u32 = 8;
/// Interval between two readings of the server's memory from `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const START_LIMIT: Duration = Duration::from_secs(120);

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all rows; the tables show medians.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { rounds: 1, seconds: 0.2 }
    }

    fn millis(&self) -> u32 {
        (self.seconds * 1000.0) as u32
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0, "nothing to measure");
    let lab = Lab::new()?;
    machine::print(&machine::describe());
    connections(&lab, args)?;
    exports(&lab, args)?;
    sizes(&lab, args)
}

/// One row: medians of the rounds.
#[derive(Clone, Default)]
struct Row {
    name: String,
    cpu_us: Vec<f64>,
    /// CPU time of a server that only moves bytes.
    echo_us: Vec<f64>,
    kiops: Vec<f64>,
    rss_kib: Vec<f64>,
    open_ms: Vec<f64>,
}

impl Row {
    fn print(&self, each: u32) {
        let rss = middle(self.rss_kib.clone());
        println!(
            "{:>12}  {:>11.2}  {:>8.1}  {:>8.0}  {:>12.0}  {:>8.1}",
            self.name,
            middle(self.cpu_us.clone()),
            middle(self.kiops.clone()),
            rss,
            rss / f64::from(each),
            middle(self.open_ms.clone()),
        );
    }
}

fn head(what: &str, each: &str) {
    println!(
        "\n{what:>12}  {:>11}  {:>8}  {:>8}  {:>12}  {:>8}",
        "us a request", "kIOPS", "RSS KiB", each, "open ms"
    );
}

fn connections(lab: &Lab, args: &Args) -> Result<()> {
    let image = lab.path("scale.img");
    volume(lab, &image, u64::from(SIZE_MIB) << 20)?;
    let mut rows = vec![Row::default(); CONNECTIONS.len()];
    for _ in 0..args.rounds {
        for (row, count) in rows.iter_mut().zip(CONNECTIONS) {
            let server = Server::start(lab, &[("", &image)], "--max-connections=256")?;
            row.name = count.to_string();
            measure(row, &server, &server.uri(""), count, args)?;
            drop(server);
            let echo = Server::echo(lab)?;
            row.echo_us.push(requests(&echo, &echo.uri(""), count, args)?.0);
        }
    }
    head("connections", "of each");
    CONNECTIONS.iter().zip(&rows).for_each(|(count, row)| row.print(*count));
    println!(
        "\n{:>12}  {:>11}  {:>11}  {:>11}",
        "connections", "us a request", "only moved", "ours"
    );
    for row in &rows {
        let all = middle(row.cpu_us.clone());
        let echo = middle(row.echo_us.clone());
        println!("{:>12}  {all:>11.2}  {echo:>11.2}  {:>11.2}", row.name, all - echo);
    }
    Ok(())
}

fn exports(lab: &Lab, args: &Args) -> Result<()> {
    let images: Result<Vec<(String, PathBuf)>> = (0..EXPORTS[EXPORTS.len() - 1])
        .map(|number| {
            let image = lab.path(&format!("export{number}.img"));
            volume(lab, &image, u64::from(SIZE_MIB) << 20)?;
            Ok((format!("e{number}"), image))
        })
        .collect();
    let images = images?;
    let mut rows = vec![Row::default(); EXPORTS.len()];
    for _ in 0..args.rounds {
        for (row, count) in rows.iter_mut().zip(EXPORTS) {
            let chosen = &images[..count as usize];
            let named: Vec<(&str, &PathBuf)> =
                chosen.iter().map(|(name, image)| (name.as_str(), image)).collect();
            let server = Server::start(lab, &named, "--max-connections=256")?;
            row.name = count.to_string();
            // Requests of the first export only: they show the cost of the other exports.
            measure(row, &server, &server.uri("e0"), 4, args)?;
        }
    }
    head("exports", "of each");
    EXPORTS.iter().zip(&rows).for_each(|(count, row)| row.print(*count));
    Ok(())
}

fn sizes(lab: &Lab, args: &Args) -> Result<()> {
    let mut rows = vec![Row::default(); SIZES_GIB.len()];
    for _ in 0..args.rounds {
        for (row, gib) in rows.iter_mut().zip(SIZES_GIB) {
            let image = lab.path("sparse.img");
            let _ = fs::remove_file(&image);
            volume(lab, &image, gib << 30)?;
            let server = Server::start(lab, &[("", &image)], "--max-connections=64")?;
            row.name = format!("{gib} GiB");
            measure(row, &server, &server.uri(""), 4, args)?;
        }
    }
    head("volume", "");
    rows.iter().for_each(|row| row.print(1));
    Ok(())
}

fn measure(row: &mut Row, server: &Server, uri: &str, connections: u32, args: &Args) -> Result<()> {
    warm(uri, SIZE_MIB)?;
    let (seen, rss_mib) = server.watched(|| requests(server, uri, connections, args));
    let (cpu_us, kiops) = seen?;
    row.cpu_us.push(cpu_us);
    row.kiops.push(kiops);
    row.rss_kib.push(rss_mib * 1024.0);
    row.open_ms.push(server.opened.as_secs_f64() * 1000.0);
    Ok(())
}

/// Random reads of 4 KiB on `connections` connections, 4 in flight on each. Returns the server's
/// CPU time per request in microseconds, and thousands of requests per second.
fn requests(server: &Server, uri: &str, connections: u32, args: &Args) -> Result<(f64, f64)> {
    let job = Job { name: "scale", rw: "randread", block: "4k", depth: 4, connections };
    let before = server.cpu_ns()?;
    let seen = job.run(&Run { uri, cpu: None, millis: args.millis(), size_mib: SIZE_MIB })?;
    let cpu_us = (server.cpu_ns()? - before) as f64 / 1000.0;
    Ok((cpu_us / seen.requests.max(1.0), seen.iops / 1000.0))
}

/// A LUKS2 volume with a very cheap keyslot.
pub(crate) fn volume(lab: &Lab, image: &Path, data_bytes: u64) -> Result<()> {
    sparse(image, data_bytes + (16 << 20))?;
    lab.give(image)?;
    let options = "--type luks2 --sector-size 4096 --pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    crate::volume::luks_format(image, &lab.pass(), options)
}

/// A server of these images.
pub(crate) struct Server {
    pub(crate) process: Watched,
    child: Child,
    socket: PathBuf,
    /// Time from the start to the socket.
    pub(crate) opened: Duration,
}

impl Server {
    pub(crate) fn start(lab: &Lab, images: &[(&str, &PathBuf)], option: &str) -> Result<Server> {
        let named = images.iter().map(|(name, image)| (*name, image.display().to_string()));
        let volumes: Vec<(&str, String)> = named.collect();
        Server::of_volumes(lab, &volumes, option)
    }

    /// A server of volumes by name.
    pub(crate) fn of_volumes(
        lab: &Lab,
        volumes: &[(&str, String)],
        option: &str,
    ) -> Result<Server> {
        let socket = lab.path("scale.sock");
        let _ = fs::remove_file(&socket);
        let config = lab.path("scale.toml");
        let pass = lab.pass();
        let mut text = String::new();
        for (name, volume) in volumes {
            text += &format!("[exports.\"{name}\"]\nvolume = {volume:?}\nkey_file = {pass:?}\n");
        }
        fs::write(&config, text)?;
        lab.give(&config)?;
        let mut serve = lab.blockyard(&["serve", option, "--config"]);
        serve.arg(&config).arg("--socket").arg(&socket);
        Server::spawn(lab, serve, socket)
    }

    /// A server that only moves bytes, scheduled like ours with short requests.
    fn echo(lab: &Lab) -> Result<Server> {
        let socket = lab.path("echo.sock");
        let _ = fs::remove_file(&socket);
        let example = lab::build_example("blockyard-host", "echo_server")?;
        tools::need("chrt")?;
        let mut echo = tools::daemon("chrt");
        echo.args(["--batch", "0"]).arg(example).arg(&socket);
        Server::spawn(lab, echo, socket)
    }

    fn spawn(lab: &Lab, mut command: Command, socket: PathBuf) -> Result<Server> {
        let log = File::create(lab.path("scale.log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let start = Instant::now();
        let child = command.spawn().context("the server does not start")?;
        let process = Watched(child.id());
        let opened = Duration::ZERO;
        let mut server = Server { process, child, socket, opened };
        let listens = until(START_LIMIT, || UnixStream::connect(&server.socket).is_ok());
        let said = fs::read_to_string(lab.path("scale.log")).unwrap_or_default();
        ensure!(listens, "the server does not listen: {}", said.trim());
        server.opened = start.elapsed();
        Ok(server)
    }

    /// Runs `work`, and returns the server's peak memory meanwhile.
    fn watched<R>(&self, work: impl FnOnce() -> R) -> (R, f64) {
        let done = AtomicBool::new(false);
        let process = self.process;
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most: f64 = 0.0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(process.rss_mib().unwrap_or(0.0));
                    std::thread::sleep(LOOK_EVERY);
                }
                most
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            (result, watch.join().unwrap_or(0.0))
        })
    }

    /// CPU time used so far.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        self.process.cpu_ns()
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
